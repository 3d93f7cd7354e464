"""Programs that show what Floodplain does. Run them from the root of a checkout."""

"""Random mutants of ``floodplain/versions`` and ``floodplain/store``, made and run by mutmut: ``make random-mutants``."""

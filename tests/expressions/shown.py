"""PySpark's ``Column``s without Spark."""


class Shown:
    """What PySpark shows of a ``Column``, which cannot be made without Spark."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Column<'{self.text}'>"

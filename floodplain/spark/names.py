"""Names of columns as Spark's expressions have them."""


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

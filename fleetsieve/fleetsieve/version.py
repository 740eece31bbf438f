"""Which version of this package is installed."""

from importlib.metadata import PackageNotFoundError, version


def installed() -> str:
    """The version, or "unknown" in a checkout that is not installed."""
    try:
        return version("fleetsieve")
    except PackageNotFoundError:
        return "unknown"

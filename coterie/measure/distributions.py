"""The normal and Student's distribution; their library is imported when a test is first made, after training."""


def normal_below(value: float) -> float:
    """How much of a standard normal lies below a value."""
    from scipy.special import ndtr

    return float(ndtr(value))


def normal_quantile(share: float) -> float:
    """The value below which this share of a standard normal lies."""
    from scipy.special import ndtri

    return float(ndtri(share))


def student_below(value: float, freedom: float) -> float:
    """How much of Student's distribution lies below a value."""
    from scipy.special import stdtr

    return float(stdtr(freedom, value))


def student_quantile(share: float, freedom: float) -> float:
    """The value below which this share of Student's distribution lies."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))

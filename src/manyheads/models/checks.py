"""Checks of model options that end in one line."""

from collections.abc import Sequence

from manyheads.errors import InputError

Shape = tuple[int, int, int]


def at_least(low: int, **options: int | Sequence[int]) -> None:
    """Check that every option, or every element of one, is at least ``low``.

    Raises:
        InputError: On the first that is not, or on an empty sequence.
    """
    for name, value in options.items():
        values = (value,) if isinstance(value, int) else value
        if not values or min(values) < low:
            shown = value if isinstance(value, int) else list(value)
            raise InputError(f"model.{name} = {shown}: must be at least {low}")


def probability(**options: float) -> None:
    """Check that every option is in [0, 1).

    Raises:
        InputError: On the first that is not.
    """
    for name, value in options.items():
        if not 0 <= value < 1:
            raise InputError(f"model.{name} = {value}: must be at least 0 and less than 1")


def pooled(model: str, shape: Shape, convolutions: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return height and width after convolutions that are each followed by a 2x2 pooling.

    Args:
        model: Name for the message.
        shape: Images, ``(c, h, w)``.
        convolutions: Kernel side and padding of each.

    Raises:
        InputError: When nothing would be left, naming the smallest side that fits.
    """

    def after(side: int) -> int:
        for kernel, padding in convolutions:
            side = max(0, side + 2 * padding - kernel + 1) // 2
        return side

    h, w = after(shape[1]), after(shape[2])
    if min(h, w) < 1:
        smallest = next(side for side in range(1, 1 << 20) if after(side) >= 1)
        raise InputError(
            f"model.name = {model!r}: images of {shape[1]}x{shape[2]} are too small, it needs {smallest}x{smallest} "
            "with these options; 'mlp' takes any size"
        )
    return h, w

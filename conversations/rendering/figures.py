"""Numbers, times and sizes as a person reads them."""


def number_text(number: int) -> str:
    """A number with thin spaces between the thousands."""
    return f"{number:,}".replace(",", "\u202f")


def duration_text(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def size_text(size: int) -> str:
    """Bytes (or characters) in the unit that suits them."""
    if size < 1000:
        return f"{size} B"
    if size < 1_000_000:
        return f"{size / 1000:.0f} KB"
    return f"{size / 1_000_000:.1f} MB"

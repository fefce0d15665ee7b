"""What a browser is, from what it says of itself: enough for its person to know it."""

BROWSERS = {
    "Edg": "Edge",
    "OPR/": "Opera",
    "SamsungBrowser/": "Samsung Internet",
    "Vivaldi/": "Vivaldi",
    "Firefox/": "Firefox",
    "FxiOS/": "Firefox",
    "CriOS/": "Chrome",
    "Chrome/": "Chrome",
    "Safari/": "Safari",
    "curl/": "curl",
}
"""What it says → its name. The first that fits: most say that they are others too."""

SYSTEMS = {
    "Android": "Android",
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Windows": "Windows",
    "Mac OS X": "macOS",
    "CrOS": "ChromeOS",
    "Linux": "Linux",
}


def name_of_agent(agent: str) -> str:
    """For instance “Firefox on Linux”."""
    browser = _first(BROWSERS, agent) or "A browser"
    system = _first(SYSTEMS, agent)
    return f"{browser} on {system}" if system else browser


def _first(names: dict[str, str], agent: str) -> str:
    return next((name for mark, name in names.items() if mark in agent), "")

"""What a model is tried with, to find out what it takes."""

TOOL = {
    "name": "current_time",
    "description": "The current time.",
    "input_schema": {"type": "object", "properties": {}},
}
# A small white square.
IMAGE = {
    "type": "image",
    "source": {
        "type": "base64",
        "media_type": "image/png",
        "data": (
            "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAADklEQVR4nGP4DwUMlDEA98A/wbI0QbsAAAAA"
            "SUVORK5CYII="
        ),
    },
}

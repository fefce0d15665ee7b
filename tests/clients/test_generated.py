"""A client that is generated from the description of the API."""

import json

import pytest

from conversations.api.main import api

from .conftest import INSTALLED, PROGRAMS, Installation, find_interpreter

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_generated_client_covers_every_operation(installation: Installation) -> None:
    python = find_interpreter("import_all.py")
    described, made = installation.folder / "openapi.json", installation.folder / "client"
    schema = api.get_openapi_schema()
    described.write_text(json.dumps(schema, default=str))
    said = installation.run(
        INSTALLED / "venv" / "bin" / "openapi-python-client",
        *("generate", "--path", described, "--output-path", made, "--meta", "none"),
    )
    assert "WARNING" not in said, said
    modules = [path for path in (made / "api").rglob("*.py") if path.stem != "__init__"]
    assert len(modules) == sum(len(methods) for methods in schema["paths"].values())
    count = installation.run(python, PROGRAMS / "import_all.py", installation.folder)
    assert int(count) > len(modules)

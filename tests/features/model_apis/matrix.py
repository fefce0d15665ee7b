from typing import Any

from conversations.accounts.tokens import WRITE
from conversations.models import Session
from tests.api.rows import Row, readers, writers

ADDRESS = "/anthropic/{slug}/v1"
OPENAI = "/openai/{slug}/v1"
ASKED = {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": " "}]}
COUNTED = {"model": "demo", "messages": [{"role": "user", "content": "."}]}
COMPLETION = {"model": "demo", "messages": ASKED["messages"]}
RESPONSE = {"model": "demo", "input": " "}

OPERATIONS = {
    ("GET", f"{ADDRESS}/models"): Row(gets=readers(200)),
    ("GET", f"{ADDRESS}/models/{{model_id}}"): Row(gets=readers(200)),
    ("POST", f"{ADDRESS}/messages/count_tokens"): Row(gets=readers(200), body=COUNTED),
    ("POST", f"{ADDRESS}/messages"): Row(gets=writers(400), scope=WRITE, body=ASKED),
    ("GET", f"{OPENAI}/models"): Row(gets=readers(200)),
    ("GET", f"{OPENAI}/models/{{model_id}}"): Row(gets=readers(200)),
    ("POST", f"{OPENAI}/chat/completions"): Row(gets=writers(400), scope=WRITE, body=COMPLETION),
    ("POST", f"{OPENAI}/responses"): Row(gets=writers(400), scope=WRITE, body=RESPONSE),
}


def make_operation_values(session: Session) -> dict[str, Any]:
    return {"model_id": "demo"}

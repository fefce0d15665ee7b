from conversations.accounts.tokens import WRITE
from tests.api.rows import Row, readers, writers

ADDRESS = "/anthropic/{slug}/v1"
ASKED = {"model": "demo", "max_tokens": 1, "messages": [{"role": "assistant", "content": "."}]}
COUNTED = {"model": "demo", "messages": [{"role": "user", "content": "."}]}

OPERATIONS = {
    ("GET", f"{ADDRESS}/models"): Row(gets=readers(200)),
    ("POST", f"{ADDRESS}/messages/count_tokens"): Row(gets=readers(200), body=COUNTED),
    ("POST", f"{ADDRESS}/messages"): Row(gets=writers(400), scope=WRITE, body=ASKED),
}

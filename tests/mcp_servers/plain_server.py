"""A server in plain Python that starts at once and can misbehave.

Run it with ``python plain_server.py [BEHAVIOUR …]``. It speaks the protocol with the handshake.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

BEHAVIOURS = set(sys.argv[1:])
OBJECT = {"type": "object", "properties": {}}
MALFORMED: list[Any] = [
    "not a tool",
    {"name": "bare"},
    {"name": "true", "inputSchema": True},
    {"name": "hinted", "inputSchema": OBJECT, "annotations": {"readOnlyHint": "maybe"}},
    {"name": "numbered", "inputSchema": OBJECT, "description": 5},
    {"name": "pictured", "inputSchema": OBJECT, "icons": [{}]},
]
cancelled: set[Any] = set()
lock = threading.Lock()
grown = False


def send(message: dict[str, Any]) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def tools() -> list[dict[str, Any]]:
    is_anew = "described_anew" in BEHAVIOURS or Path("described_anew").exists()
    how = "anew" if is_anew else "well"
    names = ["echo", "wait", "die", "environment", "touch", "deaf"]
    names += ["ask", "visit"] if "asks" in BEHAVIOURS else []
    names += ["sum_up"] if "samples" in BEHAVIOURS else []
    found = [
        {"name": name, "description": f"It does {name} {how}.", "inputSchema": OBJECT}
        for name in names
    ]
    found[0]["annotations"] = {"readOnlyHint": True}
    if "odd" in BEHAVIOURS:
        found += odd_tools()
    if "malformed" in BEHAVIOURS:
        found += MALFORMED
    if "grown" in BEHAVIOURS or grown:
        found.append({"name": "new", "inputSchema": OBJECT})
    return found


def odd_tools() -> list[dict[str, Any]]:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(400 if "abyss" in BEHAVIOURS else 60):
        deep = {"type": "object", "properties": {"a": deep}}
    schemas: dict[str, Any] = {
        "files.read me": OBJECT,
        "files/read me": OBJECT,
        "files_read_me": OBJECT,
        "лопата": OBJECT,
        "x" * 190: OBJECT,
        "too_long_" + "x" * 300: OBJECT,
        "large": {"type": "object", "description": "y" * 30_000},
        "choice": {"type": "object", "oneOf": [OBJECT]},
        "bad_type": {"type": "object", "properties": {"a": {"type": "soup"}}},
        "bad_key": {"type": "object", "properties": {"a b": {"type": "string"}}},
        "deep": deep,
    }
    listed = [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]
    return [*listed, {"name": "echo", "inputSchema": OBJECT}]


answers: dict[str, dict[str, Any]] = {}


def ask_person(number: Any, by_address: bool) -> dict[str, Any]:
    name = {"type": "string", "title": "Your name"}
    schema = {"type": "object", "properties": {"name": name}, "required": ["name"]}
    asked: dict[str, Any] = {"message": "What is your name?", "requestedSchema": schema}
    if by_address:
        url = "https://example.org/sign-in"
        asked = {"mode": "url", "message": "Sign in.", "url": url, "elicitationId": "1"}
    send({"id": f"ask-{number}", "method": "elicitation/create", "params": asked})
    if "hurries" in BEHAVIOURS:
        return {}
    while f"ask-{number}" not in answers:
        time.sleep(0.01)
    Path("answered").write_text(json.dumps(answers[f"ask-{number}"]))
    return answers[f"ask-{number}"]


def ask_model(number: Any, round: int) -> str:
    said = {"role": "user", "content": {"type": "text", "text": "Sum up: the beans"}}
    asked = {"messages": [said], "maxTokens": 5000, "systemPrompt": "Be short."}
    asked["modelPreferences"] = {"hints": [{"name": "haiku"}]}
    key = f"model-{number}-{round}"
    send({"id": key, "method": "sampling/createMessage", "params": asked})
    while key not in answers:
        time.sleep(0.01)
    given = answers[key]
    if "message" in given:
        return str(given["message"])
    return f"{given['model']} ({given['stopReason']}): {given['content']['text']}"


def answer_call(number: Any, name: str, arguments: dict[str, Any]) -> None:
    if name == "die":
        print("it was too much", file=sys.stderr, flush=True)
        os._exit(7)
    if name == "deaf":
        return
    if "error" in arguments:
        send({"id": number, "error": arguments["error"]})
        return
    if name == "wait":
        while not Path("go").exists():
            if number in cancelled:
                Path("cancelled").touch()
                return
            time.sleep(0.01)
    if name == "touch":
        Path(arguments.get("name", "touched")).write_text("by a server\n")
    if name in ("ask", "visit"):
        text = json.dumps(ask_person(number, name == "visit"))
    elif name == "sum_up":
        times = arguments.get("times", 1)
        text = "\n".join(ask_model(number, round) for round in range(times))
    elif name == "environment":
        text = json.dumps({"env": dict(os.environ), "cwd": str(Path.cwd()), "pid": os.getpid()})
    elif name == "list":
        text = ",".join(os.listdir(arguments["path"]))
    else:
        text = json.dumps(arguments)
    if "cut" in arguments:
        text = "half a smile: \ud83d"
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    if "structured" in arguments:
        result["structuredContent"] = {"given": arguments["structured"]}
    send({"id": number, "result": result})


def answer(message: dict[str, Any]) -> None:
    global grown
    method, number = message.get("method"), message.get("id")
    params = message.get("params") or {}
    if method == "initialize":
        is_strange = "strange_version" in BEHAVIOURS
        version = "1900-01-01" if is_strange else params["protocolVersion"]
        capabilities = {"tools": {"listChanged": True}}
        info = {"name": "plain", "version": "1"}
        result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
        send({"id": number, "result": result})
    elif method == "tools/list":
        send({"id": number, "result": {"tools": tools()}})
        if "flood" in BEHAVIOURS:
            sys.stdout.write("\n" * 20_000)
    elif method == "tools/call":
        if params["name"] == "new" or (params.get("arguments") or {}).get("grow"):
            grown = True
            send({"method": "notifications/tools/list_changed"})
        args = (number, params["name"], params.get("arguments") or {})
        threading.Thread(target=answer_call, args=args, daemon=True).start()
    elif method is None:
        answers[str(number)] = message.get("result") or message["error"]
    elif method == "notifications/cancelled":
        cancelled.add(params.get("requestId"))
    elif number is not None:
        send({"id": number, "error": {"code": -32601, "message": "Method not found"}})


def main() -> None:
    if "missing_library" in BEHAVIOURS:
        sys.exit("ImportError: no library of that name")
    if "child" in BEHAVIOURS:
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        Path("child").write_text(str(child.pid))
    if "babble" in BEHAVIOURS:
        print("Welcome to this server!\n{not json\n" + "~" * 70_000, flush=True)
    if "complain" in BEHAVIOURS:
        threading.Thread(target=complain, daemon=True).start()
    for line in sys.stdin:
        if "silent" not in BEHAVIOURS:
            answer(json.loads(line))
    if "stubborn" in BEHAVIOURS:
        time.sleep(1000)


def complain() -> None:
    while True:
        sys.stderr.write("so much to complain about\n" * 1000)


main()

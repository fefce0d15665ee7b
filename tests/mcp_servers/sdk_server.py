"""A server that is made with the SDK.

``python sdk_server.py`` speaks over standard input and output. ``python sdk_server.py http`` speaks
over HTTP and prints its port.
"""

import asyncio
import os
import socket
import sys
import time
from pathlib import Path
from typing import Annotated

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp_types import CreateMessageResult, ModelHint, ModelPreferences, SamplingMessage, TextContent
from pydantic import BaseModel

server = MCPServer("sdk")


@server.tool()
async def echo(text: str) -> str:
    """Say it again."""
    return f"{text} from {os.path.basename(os.getcwd())}"


@server.tool()
async def steps(count: int, ctx: Context) -> str:
    """Report each step, then wait for a file ``go`` in the folder."""
    for number in range(count):
        await ctx.report_progress(number + 1, count, f"step {number + 1}")
    while not os.path.exists("go"):  # noqa: ASYNC240
        await asyncio.sleep(0.01)
    return "Went."


@server.tool()
def write(name: str, text: str) -> str:
    """Write a file in the folder."""
    Path(name).write_text(text)
    return "Written."


@server.tool()
async def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


@server.tool(structured_output=False)
async def picture() -> Image:
    """Show a picture."""
    from io import BytesIO

    from PIL import Image as Pillow

    out = BytesIO()
    Pillow.new("RGB", (30, 20), "green").save(out, "PNG")
    return Image(data=out.getvalue(), format="png")


@server.tool()
async def flood(size: int) -> str:
    """Say much."""
    return "x" * size


class Answer(BaseModel):
    name: str


async def who() -> Elicit[Answer]:
    return Elicit("What is your name?", Answer)


@server.tool()
async def ask(answer: Annotated[ElicitationResult[Answer], Resolve(who)]) -> str:
    """Ask a person something."""
    name = f" {answer.data.name}" if isinstance(answer, AcceptedElicitation) else ""
    return f"{answer.action}{name}"


async def summary(text: str) -> Sample:
    said = SamplingMessage(role="user", content=TextContent(type="text", text=f"Sum up: {text}"))
    wanted = ModelPreferences(hints=[ModelHint(name="haiku")])
    return Sample([said], max_tokens=5000, system_prompt="Be short.", model_preferences=wanted)


@server.tool()
async def sum_up(text: str, answer: Annotated[CreateMessageResult, Resolve(summary)]) -> str:
    """Have the model sum up a text."""
    assert isinstance(answer.content, TextContent)
    return f"{answer.model} ({answer.stop_reason}): {answer.content.text}"


@server.resource("beds://south", description="The south bed")
def south() -> str:
    """Its plan."""
    return "Beans, 40 cm apart."


@server.resource("beds://{name}/picture", mime_type="image/png")
def bed_picture(name: str) -> bytes:
    """Of any bed."""
    from io import BytesIO

    from PIL import Image as Pillow

    out = BytesIO()
    Pillow.new("RGB", (30, 20), "green").save(out, "PNG")
    return out.getvalue()


@server.prompt()
def plan(bed: str, season: str = "spring") -> str:
    """Plan a bed."""
    return f"Plan the bed {bed} for {season}."


@server.tool()
async def grow(ctx: Context) -> str:
    """Add a tool to the list."""
    server.add_tool(echo, name="echo_too")
    await ctx.notify_tools_changed()
    return "Grown."


@server.tool()
async def die() -> str:
    """End the server in the middle of a call."""
    print("out of memory, as it were", file=sys.stderr, flush=True)
    os._exit(3)


def serve_http() -> None:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "0"))))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    time.sleep(float(os.environ.get("START_SECONDS", "0")))
    if sys.argv[1:] == ["http"]:
        serve_http()
    else:
        server.run()

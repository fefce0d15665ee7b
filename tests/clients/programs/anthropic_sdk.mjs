// A conversation with the TypeScript SDK of the Messages API.

import Anthropic from "@anthropic-ai/sdk";
import {
  ANTHROPIC, DESCRIPTION, LAST, MODEL, NEEDS_TOOL, PARAMETERS, PLAIN, STREAMED, TOKEN, report,
  weather,
} from "./words.mjs";

const client = new Anthropic({ baseURL: ANTHROPIC, apiKey: TOKEN });
const tools = [{ name: "weather", description: DESCRIPTION, input_schema: PARAMETERS }];
const asked = { model: MODEL, max_tokens: 500, tools };
const messages = [];

const textOf = ({ content }) => content.flatMap((block) => block.text ?? []).join("");

async function say(content) {
  messages.push({ role: "user", content });
  const message = await client.messages.create({ messages, ...asked });
  messages.push({ role: "assistant", content: message.content });
  return message;
}

const plain = await say(PLAIN);
messages.push({ role: "user", content: STREAMED });
const pieces = [];
const stream = client.messages.stream({ messages, ...asked });
stream.on("text", (piece) => pieces.push(piece));
messages.push({ role: "assistant", content: (await stream.finalMessage()).content });
const calls = (await say(NEEDS_TOOL)).content.filter(({ type }) => type === "tool_use");
const warm = await say(calls.map(({ id, input }) => (
  { type: "tool_result", tool_use_id: id, content: weather(input) }
)));
report(pieces, textOf(plain), textOf(warm), textOf(await say(LAST)));

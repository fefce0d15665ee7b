// A conversation with the TypeScript SDK of OpenAI. The argument is ``chat`` or ``responses``.

import OpenAI from "openai";
import {
  DESCRIPTION, LAST, MODEL, NEEDS_TOOL, OPENAI, PARAMETERS, PLAIN, STREAMED, TOKEN, report,
  weather,
} from "./words.mjs";

const client = new OpenAI({ baseURL: OPENAI, apiKey: TOKEN });
const definition = { name: "weather", description: DESCRIPTION, parameters: PARAMETERS };

async function chat() {
  const asked = { model: MODEL, tools: [{ type: "function", function: definition }] };
  const messages = [];
  async function say(...more) {
    messages.push(...more);
    const { message } = (await client.chat.completions.create({ messages, ...asked })).choices[0];
    messages.push(message);
    return message;
  }
  const plain = await say({ role: "user", content: PLAIN });
  messages.push({ role: "user", content: STREAMED });
  const pieces = [];
  for await (const chunk of await client.chat.completions.create(
    { messages, stream: true, ...asked },
  )) {
    pieces.push(chunk.choices[0]?.delta.content ?? "");
  }
  messages.push({ role: "assistant", content: pieces.join("") });
  const { tool_calls: calls } = await say({ role: "user", content: NEEDS_TOOL });
  const warm = await say(...calls.map((call) => ({
    role: "tool", tool_call_id: call.id, content: weather(JSON.parse(call.function.arguments)),
  })));
  const last = await say({ role: "user", content: LAST });
  report(pieces, plain.content, warm.content, last.content);
}

async function respond() {
  const asked = { model: MODEL, tools: [{ type: "function", strict: false, ...definition }] };
  const say = (input, after) => (
    client.responses.create({ input, previous_response_id: after?.id, ...asked })
  );
  const plain = await say(PLAIN);
  const pieces = [];
  const stream = client.responses.stream(
    { input: STREAMED, previous_response_id: plain.id, ...asked },
  );
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") pieces.push(event.delta);
  }
  const called = await say(NEEDS_TOOL, await stream.finalResponse());
  const calls = called.output.filter(({ type }) => type === "function_call");
  const warm = await say(calls.map((call) => ({
    type: "function_call_output", call_id: call.call_id, output: weather(JSON.parse(call.arguments)),
  })), called);
  const last = await say(LAST, warm);
  report(pieces, plain.output_text, warm.output_text, last.output_text);
}

await { chat, responses: respond }[process.argv[2]]();

// A conversation with Vercel's AI SDK. The argument is ``anthropic``, or OpenAI's ``chat`` or
// ``responses``.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import {
  ANTHROPIC, DESCRIPTION, LAST, MODEL, NEEDS_TOOL, OPENAI, PLAIN, STREAMED, TOKEN, report,
  weather,
} from "./words.mjs";

const kind = process.argv[2];
const openai = createOpenAI({ baseURL: OPENAI, apiKey: TOKEN });
const anthropic = createAnthropic({ baseURL: `${ANTHROPIC}/v1`, apiKey: TOKEN });
const model = { anthropic, chat: openai.chat, responses: openai.responses }[kind](MODEL);
const tools = {
  weather: tool({
    description: DESCRIPTION, inputSchema: z.object({ place: z.string() }), execute: weather,
  }),
};
const messages = [];
const asked = () => ({ model, tools, messages, stopWhen: stepCountIs(3) });

async function say(content) {
  messages.push({ role: "user", content });
  const result = await generateText(asked());
  messages.push(...result.response.messages);
  return result.text;
}

const plain = await say(PLAIN);
messages.push({ role: "user", content: STREAMED });
const result = streamText(asked());
const pieces = [];
for await (const piece of result.textStream) pieces.push(piece);
messages.push(...(await result.response).messages);
report(pieces, plain, await say(NEEDS_TOOL), await say(LAST));

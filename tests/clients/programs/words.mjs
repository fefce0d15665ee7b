// The messages that each program sends, and the tool that it executes.

const { CLIENT_ADDRESS, CLIENT_TOKEN, CLIENT_MODEL } = process.env;
export const TOKEN = CLIENT_TOKEN;
export const MODEL = CLIENT_MODEL;
export const ANTHROPIC = `${CLIENT_ADDRESS}/api/v1/anthropic/garden`;
export const OPENAI = `${CLIENT_ADDRESS}/api/v1/openai/garden/v1`;

export const [PLAIN, STREAMED, NEEDS_TOOL, LAST] = [
  "What now?", "Go on.", "And the weather in Rome?", "Thank you.",
];

export const DESCRIPTION = "The weather of a place.";
export const PARAMETERS = {
  type: "object", properties: { place: { type: "string" } }, required: ["place"],
};

export const weather = ({ place }) => `25 degrees in ${place}`;

// Print the answers. ``pieces`` are the parts of the streamed answer, the second one.
export function report(pieces, plain, ...rest) {
  const texts = [plain, pieces.join(""), ...rest];
  console.log(JSON.stringify({ texts, pieces: pieces.length }));
}

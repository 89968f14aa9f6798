// Asks a model through OpenAI's client for Node.js: `node ask_openai.mjs URL KEY MODEL`.
import OpenAI from "openai";

const [url, key, model] = process.argv.slice(2);
const messages = [{ role: "user", content: "hi" }];
const client = (apiKey) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });

async function refusal(apiKey, asked) {
  try {
    await client(apiKey).chat.completions.create({ model: asked, messages });
  } catch (error) {
    return `${error.constructor.name} ${error.status}`;
  }
  return "";
}

const chat = await client(key).chat.completions.create({ model, messages, max_tokens: 8 });
const stream = await client(key).chat.completions.create({
  model, messages, max_tokens: 8, stream: true, stream_options: { include_usage: true },
});
const chunks = [];
for await (const chunk of stream) chunks.push(chunk);
const models = [];
for await (const each of client(key).models.list()) models.push(each.id);
console.log(JSON.stringify({
  chat_tokens: chat.usage.completion_tokens,
  stream_chunks: chunks.length,
  stream_tokens: chunks.find((chunk) => chunk.usage).usage.completion_tokens,
  models,
  no_such_model: await refusal(key, "gone"),
  wrong_key: await refusal("wrong", model),
}));

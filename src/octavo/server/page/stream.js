// A chat completion as it comes: server-sent events over fetch.

export class RequestFailed extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function headers(key) {
  return key ? { "Content-Type": "application/json", Authorization: "Bearer " + key } : { "Content-Type": "application/json" };
}

// Chunks of one answer. Ends when the server says so; throws RequestFailed, or an AbortError once `signal` fires.
export async function* chunks(body, key, signal) {
  const reply = await fetch("/v1/chat/completions", {
    method: "POST", headers: headers(key), body: JSON.stringify(body), signal,
  });
  if (!reply.ok) throw await failure(reply);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new RequestFailed(0, "The answer broke off.");
      const events = (pending + value).split("\n\n");
      pending = events.pop();
      for (const event of events) {
        const data = dataOf(event);
        if (data === "[DONE]") return;
        if (data === "") continue;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new RequestFailed(0, chunk.error.message);
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

export async function failure(reply) {
  let message = `The server answered ${reply.status}.`;
  try {
    message = (await reply.json()).error.message;
  } catch {
    // Not ours: a proxy's page, perhaps.
  }
  return new RequestFailed(reply.status, message);
}

// The conversation: what is said, what is under way, and the keys that drive it.

import * as settings from "/chat/settings.js";
import { chunks, failure, headers } from "/chat/stream.js";
import { Markdown, copyText, element, numbers, quietButton } from "/chat/view.js";

const STORE = "octavo.messages";
const $ = (id) => document.getElementById(id);
const view = document.querySelector("main"); // what scrolls

let model = null;
let messages = JSON.parse(sessionStorage.getItem(STORE) ?? "[]"); // {role, content, reasoning, meta, error}
let running = null; // the AbortController of the answer under way
let editing = -1;
let atEnd = true; // whether the end of the conversation was in view when the view last moved

// --- the page ---

function draw() {
  $("messages").replaceChildren(...messages.map(messageView));
  $("empty").hidden = messages.length > 0;
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
  if (running === null) sessionStorage.setItem(STORE, JSON.stringify(messages));
}

function messageView(message, index) {
  const item = element("li", { class: "message " + message.role });
  if (index === editing) item.append(editor(message, index));
  else item.append(...contents(message, index));
  return item;
}

function contents(message, index) {
  const body = element("div", { class: "body", dir: "auto" });
  const parts = [body];
  if (message.role === "assistant") {
    new Markdown(body).update(message.content);
    if (message.reasoning) parts.unshift(thinking(message.reasoning, false));
  } else body.textContent = message.content;
  if (message.error) parts.push(element("div", { class: "failed", role: "alert" }, message.error));
  parts.push(actions(message, index));
  return parts;
}

function thinking(text, open) {
  const details = element("details", { class: "thinking" }, element("summary", {}, "Thinking"), element("div", {}, text));
  details.open = open;
  return details;
}

function actions(message, index) {
  const bar = element("div", { class: "meta" }, ...numbers(message.meta ?? {}).map((text) => element("span", {}, text)));
  if (running !== null) return bar;
  const copy = quietButton("Copy", "Copy this message", () => copyText(copy, message.content));
  bar.append(copy, quietButton("Edit", "Edit this message", () => edit(index)));
  if (message.role === "assistant" && index === messages.length - 1) {
    bar.append(quietButton("Again", "Answer again (Alt+R)", regenerate));
  }
  return bar;
}

function edit(index) {
  if (running !== null || index < 0) return;
  editing = index;
  draw();
}

function editor(message, index) {
  const field = element("textarea", { rows: "4", "aria-label": "Edit the message" });
  field.value = message.content;
  const done = (save) => {
    editing = -1;
    const text = field.value.trim();
    if (save && text && message.role === "user") {
      messages = messages.slice(0, index);
      say(text);
    } else {
      if (save && text) message.content = text;
      draw();
    }
    $("prompt").focus();
  };
  field.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") done(false);
    else if (event.key === "Enter" && !event.shiftKey) done(true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  requestAnimationFrame(() => {
    field.style.height = `${Math.min(field.scrollHeight + 4, innerHeight / 2)}px`;
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  });
  const save = element("button", { type: "button", class: "primary", onclick: () => done(true) });
  save.textContent = message.role === "user" ? "Send" : "Save";
  const cancel = element("button", { type: "button", onclick: () => done(false) }, "Cancel");
  return element("div", { class: "editor" }, field, element("div", {}, cancel, save));
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = text === "";
}

// --- answers ---

function say(text) {
  messages.push({ role: "user", content: text });
  answer();
}

function regenerate() {
  if (running !== null || !messages.length) return;
  if (messages[messages.length - 1].role === "assistant") messages.pop();
  if (messages.length) answer();
}

function requestBody() {
  const system = settings.systemPrompt();
  const said = messages.map(({ role, content }) => ({ role, content }));
  return {
    ...(model ? { model } : {}),
    messages: system ? [{ role: "system", content: system }, ...said] : said,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    ...settings.sampling(),
  };
}

async function answer() {
  if (running !== null) return;
  const body = requestBody();
  const message = { role: "assistant", content: "", reasoning: "", meta: {} };
  messages.push(message);
  running = new AbortController();
  notice("");
  draw();
  const growing = new Growing($("messages").lastElementChild, message);
  scrollDown(true);
  const clock = new Clock(message.meta);
  try {
    for await (const chunk of chunks(body, settings.key(), running.signal)) {
      take(chunk, message, clock);
      growing.changed();
    }
  } catch (error) {
    if (error.name === "AbortError") message.meta.finish = "stopped";
    else message.error = error.status === undefined ? "The server cannot be reached." : error.message;
    if (error.status === 401) settings.askForKey();
  }
  clock.end();
  growing.end();
  running = null;
  if (!message.content && !message.reasoning && message.meta.finish === "stopped") messages.pop();
  const down = isDown();
  draw();
  scrollDown(down);
}

function take(chunk, message, clock) {
  for (const choice of chunk.choices) {
    const delta = choice.delta ?? {};
    message.content += delta.content ?? "";
    message.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
    if (choice.finish_reason) message.meta.finish = choice.finish_reason;
  }
  if (chunk.usage) clock.count(chunk.usage);
}

class Clock {
  constructor(meta) {
    this.meta = meta;
    this.begin = performance.now();
  }

  count(usage) {
    const now = performance.now();
    if (usage.completion_tokens > 0) this.first ??= now;
    if (usage.completion_tokens > (this.meta.completionTokens ?? 0)) this.last = now;
    this.meta.completionTokens = usage.completion_tokens;
    this.meta.promptTokens = usage.prompt_tokens;
    this.meta.cachedTokens = usage.prompt_tokens_details?.cached_tokens ?? 0;
    if (this.first === undefined) return;
    this.meta.firstTokenMs = this.first - this.begin;
    const seconds = (this.last - this.first) / 1000;
    if (seconds > 0) this.meta.tokensPerSecond = (usage.completion_tokens - 1) / seconds;
  }

  end() {
    if (this.first !== undefined) this.meta.totalMs = performance.now() - this.begin;
  }
}

// The answer under way: drawn once a frame, however fast it comes.
class Growing {
  constructor(item, message) {
    this.item = item;
    this.message = message;
    this.markdown = new Markdown(item.querySelector(".body"));
    this.pending = 0;
    item.classList.add("busy");
    item.setAttribute("aria-busy", "true");
  }

  changed() {
    this.pending ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.pending = 0;
    const down = isDown();
    this.markdown.update(this.message.content);
    if (this.message.reasoning) this.drawThinking();
    this.item.querySelector(".meta").replaceChildren(...numbers(this.message.meta).map((text) => element("span", {}, text)));
    scrollDown(down);
  }

  drawThinking() {
    this.thinking ??= this.item.insertBefore(thinking("", true), this.item.firstChild);
    this.thinking.lastElementChild.textContent = this.message.reasoning;
  }

  end() {
    cancelAnimationFrame(this.pending);
  }
}

function stop() {
  running?.abort();
}

function isDown() {
  return view.scrollHeight - view.scrollTop - view.clientHeight < 60;
}

function scrollDown(wanted) {
  if (wanted) view.scrollTop = view.scrollHeight;
  atEnd = isDown();
}

// Whoever looks at the end goes on looking at it when the window, the settings or the message box change its place.
// By then the end may lie elsewhere, so it must be known from before; a mere change of size sends no scroll event.
view.addEventListener("scroll", () => (atEnd = isDown()));
new ResizeObserver(() => scrollDown(atEnd)).observe(view);

// --- keys and buttons ---

function fit() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight + 2}px`;
}

function send(event) {
  event?.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || running !== null) return;
  $("prompt").value = "";
  fit();
  say(text);
}

function renew() {
  stop();
  messages = [];
  editing = -1;
  notice("");
  draw();
  $("prompt").focus();
}

function toggleSettings() {
  settings.show(!settings.isShown());
  if (settings.isShown()) document.querySelector("#sampling textarea").focus();
  else $("prompt").focus();
}

const SHORTCUTS = { KeyN: renew, KeyR: regenerate, KeyS: toggleSettings };

document.addEventListener("keydown", (event) => {
  if (event.altKey && !event.ctrlKey && !event.metaKey && SHORTCUTS[event.code]) {
    event.preventDefault();
    SHORTCUTS[event.code]();
  } else if (event.key === "Escape") {
    if (running !== null) stop();
    else if (settings.isShown()) toggleSettings();
  }
});

$("prompt").addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) send(event);
  else if (event.key === "ArrowUp" && $("prompt").value === "") {
    event.preventDefault();
    edit(messages.findLastIndex((message) => message.role === "user"));
  }
});
$("prompt").addEventListener("input", fit);
$("composer").addEventListener("submit", send);
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", renew);
$("toggle-settings").addEventListener("click", toggleSettings);
$("theme").addEventListener("click", settings.nextTheme);
settings.onKeyChange(findModel);

async function findModel() {
  try {
    const reply = await fetch("/v1/models", { headers: headers(settings.key()) });
    if (!reply.ok) throw await failure(reply);
    model = (await reply.json()).data[0].id;
    $("model").textContent = model;
    document.title = `${model} · Octavo`;
    notice("");
  } catch (error) {
    notice(error.status === undefined ? "The server cannot be reached." : error.message);
    if (error.status !== 401) return;
    if (!settings.key()) notice("This server answers those who have an API key.");
    settings.askForKey();
  }
}

draw();
scrollDown(true);
findModel();
$("prompt").focus();

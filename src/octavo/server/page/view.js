// Messages on the page. Model text becomes nodes by way of the Markdown tree, never as HTML.

import { build, parse } from "/chat/markdown.js";

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function quietButton(text, title, action) {
  return element("button", { type: "button", class: "quiet", title, onclick: action }, text);
}

// An answer that grows: blocks that did not change since the last time stay as they are.
export class Markdown {
  constructor(root) {
    this.root = root;
    this.sources = [];
  }

  update(text) {
    const found = parse(text);
    let same = 0;
    while (same < found.length && found[same].source === this.sources[same]) same += 1;
    while (this.root.childNodes.length > same) this.root.lastChild.remove();
    for (const { node } of found.slice(same)) this.root.append(dressed(build(node, document), node));
    this.sources = found.map((block) => block.source);
  }
}

function dressed(made, node) {
  if (node.tag === "pre") return codeBlock(made, node.attrs["data-language"] ?? "");
  if (node.tag === "table") return element("div", { class: "scroll" }, made);
  for (const pre of made.querySelectorAll?.("pre") ?? []) {
    const place = document.createComment("");
    pre.replaceWith(place);
    place.replaceWith(codeBlock(pre, pre.getAttribute("data-language") ?? ""));
  }
  return made;
}

function codeBlock(pre, language) {
  const copy = quietButton("Copy", "Copy this code", () => copyText(copy, pre.textContent));
  pre.tabIndex = 0; // so that a wide one can be scrolled with the keyboard
  return element("div", { class: "block" }, element("div", { class: "bar" }, element("span", {}, language), copy), pre);
}

export async function copyText(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = before), 1200);
}

export function numbers(meta) {
  const parts = [];
  if (meta.completionTokens !== undefined) parts.push(`${meta.completionTokens} tokens`);
  if (meta.tokensPerSecond) parts.push(`${meta.tokensPerSecond.toFixed(1)} tokens/s`);
  if (meta.firstTokenMs !== undefined) parts.push(`first after ${duration(meta.firstTokenMs)}`);
  if (meta.totalMs !== undefined) parts.push(`${duration(meta.totalMs)} in all`);
  if (meta.promptTokens) parts.push(`prompt ${meta.promptTokens}${meta.cachedTokens ? ` (${meta.cachedTokens} cached)` : ""}`);
  if (meta.finish === "length") parts.push("cut at the limit");
  if (meta.finish === "stopped") parts.push("stopped");
  return parts;
}

function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

// Markdown as models write it: first a tree of plain objects, then DOM nodes.
//
// A node is a string or {tag, attrs, children}. Text stays text all the way: nothing is ever parsed as HTML, tags come
// from a fixed list, and a link leads only to http, https or mailto. Every loop goes forward, and nesting is bounded, so
// that time grows with the length of the text, whatever it holds.

const MAX_DEPTH = 8;
const MAX_OPEN = 32;

const TAGS = new Set(
  "p h1 h2 h3 h4 h5 h6 ul ol li blockquote hr pre code em strong del a br table thead tbody tr th td".split(" "),
);
const ATTRIBUTES = new Set(["href", "class", "start", "data-language"]);

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:[ \t]|$)/;
const DELIMITERS = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

// The blocks of a text, each with the lines it was made of, so that a reader of a growing text can keep what is done.
export function parse(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const [node, end] = block(lines, at, depth);
    found.push({ node, source: lines.slice(at, end).join("\n") });
    at = end;
  }
  return found;
}

function block(lines, at, depth) {
  const line = lines[at];
  const fence = openFence(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [element("h" + heading[1].length, inline(headingText(line.slice(heading[0].length)))), at + 1];
  if (RULE.test(line)) return [element("hr", []), at + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, depth);
}

function openFence(line) {
  const match = FENCE.exec(line);
  return match && !(match[1][0] === "`" && match[2].includes("`")) ? match : null;
}

function fenced(lines, at, [, marks, info]) {
  const closing = new RegExp("^ {0,3}" + marks[0] + "{" + marks.length + ",}[ \\t]*$");
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end += 1;
  const language = info.trim().split(/\s/)[0].slice(0, 40);
  const code = element("code", [lines.slice(at + 1, end).join("\n")]);
  const attrs = language ? { "data-language": language } : {};
  return [{ tag: "pre", attrs, children: [code] }, Math.min(end + 1, lines.length)];
}

function headingText(text) {
  let end = text.trimEnd();
  let marks = end.length;
  while (marks > 0 && end[marks - 1] === "#") marks -= 1;
  if (marks < end.length && (marks === 0 || end[marks - 1] === " ")) end = end.slice(0, marks);
  return end.trim();
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [element("blockquote", blocks(inner, depth + 1).map((block) => block.node)), end];
}

function list(lines, at, depth) {
  const ordered = /\d/.test(ITEM.exec(lines[at])[2]);
  const kind = ITEM.exec(lines[at])[2].slice(-1);
  const items = [];
  let end = at;
  let loose = false;
  while (end < lines.length) {
    const match = ITEM.exec(lines[end]);
    if (!match || match[2].slice(-1) !== kind || RULE.test(lines[end])) break;
    const [item, next, blank] = listItem(lines, end, match);
    items.push(item);
    loose ||= blank.inside || (blank.after && next < lines.length && isItem(lines[next], kind));
    end = next;
  }
  const children = items.map((item) => element("li", itemContent(blocks(item, depth + 1), loose)));
  const start = ordered ? parseInt(ITEM.exec(lines[at])[2], 10) : 1;
  const attrs = start !== 1 ? { start: String(start) } : {};
  return [{ tag: ordered ? "ol" : "ul", attrs, children }, end];
}

function isItem(line, kind) {
  const match = ITEM.exec(line);
  return match !== null && match[2].slice(-1) === kind;
}

// The lines of one item without their indentation, where the next begins, and whether blank lines are in or after it.
function listItem(lines, at, [marker, indent, sign]) {
  const rest = lines[at].slice(marker.length);
  const padding = rest.length - rest.trimStart().length;
  const width = indent.length + sign.length + 1 + (padding < 4 && rest.trim() ? padding : 0);
  const item = [lines[at].slice(width)];
  let end = at + 1;
  let pending = 0;
  let inside = false;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (isBlank(line)) {
      pending += 1;
      continue;
    }
    const depth = line.length - line.trimStart().length;
    // Models often indent by less than the marker is wide.
    const belongs = depth >= width || (depth >= 2 && ITEM.test(line.trimStart()) && depth > indent.length);
    if (!belongs && (pending || startsBlock(line))) break;
    if (pending) {
      inside ||= depth >= width && !ITEM.test(line.trimStart());
      for (; pending > 0; pending -= 1) item.push("");
    }
    item.push(line.slice(Math.min(depth, width)));
  }
  return [item, end, { inside, after: pending > 0 }];
}

function itemContent(found, loose) {
  const nodes = found.map((block) => block.node);
  if (loose) return nodes;
  return nodes.flatMap((node) => (node.tag === "p" ? node.children : [node]));
}

function startsBlock(line) {
  return openFence(line) !== null || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function isTable(lines, at) {
  return lines[at].includes("|") && at + 1 < lines.length && lines[at + 1].includes("-")
    && DELIMITERS.test(lines[at + 1]) && cells(lines[at]).length === cells(lines[at + 1]).length;
}

function table(lines, at) {
  const sides = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  const row = (line, tag) => {
    const texts = cells(line);
    return element("tr", sides.map((side, i) => ({
      tag, attrs: side ? { class: side } : {}, children: inline(texts[i] ?? ""),
    })));
  };
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && lines[end].includes("|")) end += 1;
  const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
  return [element("table", [element("thead", [row(lines[at], "th")]), element("tbody", body)]), end];
}

function cells(line) {
  const found = [""];
  for (let i = 0; i < line.length; i += 1) {
    if (line[i] === "\\" && line[i + 1] === "|") found[found.length - 1] += line[(i += 1)];
    else if (line[i] === "|") found.push("");
    else found[found.length - 1] += line[i];
  }
  const texts = found.map((cell) => cell.trim());
  if (texts[0] === "") texts.shift();
  if (texts.length && texts[texts.length - 1] === "") texts.pop();
  return texts;
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end, depth)) end += 1;
  return [element("p", inline(lines.slice(at, end).map((line) => line.trimStart()).join("\n").trimEnd())), end];
}

function interrupts(lines, at, depth) {
  const line = lines[at];
  if (openFence(line) || HEADING.test(line) || RULE.test(line) || isTable(lines, at)) return true;
  return depth < MAX_DEPTH && (QUOTE.test(line) || (ITEM.test(line) && !/^ {0,3}\d*[2-9]\d*[.)]/.test(line)));
}

// What stands within a line: code, emphasis, links, breaks. Markers that never close stay as they are.
export function inline(text) {
  const out = [];
  const open = [];
  const noTicks = new Set();
  let plain = "";
  let at = 0;
  const flush = () => {
    if (plain) out.push(plain);
    plain = "";
  };
  while (at < text.length) {
    const char = text[at];
    if (char === "\\" && at + 1 < text.length) {
      const next = text[at + 1];
      if (next === "\n") {
        flush();
        out.push(element("br", []));
      } else plain += /[!-/:-@[-`{-~]/.test(next) ? next : char + next;
      at += 2;
    } else if (char === "`") {
      const run = runLength(text, at);
      const end = noTicks.has(run) ? -1 : closingTicks(text, at + run, run);
      if (end < 0) {
        noTicks.add(run);
        plain += text.slice(at, at + run);
        at += run;
      } else {
        flush();
        out.push(element("code", [codeText(text.slice(at + run, end))]));
        at = end + run;
      }
    } else if (char === "\n") {
      if (plain.endsWith("  ")) {
        plain = plain.trimEnd();
        flush();
        out.push(element("br", []));
      } else plain += "\n";
      at += 1;
    } else if (char === "*" || char === "_" || char === "~") {
      const length = Math.min(runLength(text, at), char === "~" ? 2 : 3);
      flush();
      if (char === "~" && length < 2) plain += char;
      else emphasis(text, at, length, out, open);
      at += length;
    } else if (char === "[") {
      flush();
      if (open.length < MAX_OPEN) open.push({ mark: "[", index: out.length });
      out.push("[");
      at += 1;
    } else if (char === "]") {
      flush();
      at = closeBracket(text, at, out, open);
    } else if (char === "<" || (char === "h" && !/[\p{L}\p{N}]/u.test(text[at - 1] ?? ""))) {
      const link = bareLink(text, at);
      if (link) {
        flush();
        out.push({ tag: "a", attrs: { href: link.href }, children: [link.href] });
        at = link.end;
      } else {
        plain += char;
        at += 1;
      }
    } else {
      plain += char;
      at += 1;
    }
  }
  flush();
  return joined(out);
}

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function closingTicks(text, from, run) {
  for (let at = text.indexOf("`", from); at >= 0; at = text.indexOf("`", at)) {
    const length = runLength(text, at);
    if (length === run) return at;
    at += length;
  }
  return -1;
}

function codeText(text) {
  const flat = text.replace(/\n/g, " ");
  return flat.startsWith(" ") && flat.endsWith(" ") && flat.trim() ? flat.slice(1, -1) : flat;
}

const WRAPPERS = { "*": ["em"], "**": ["strong"], "***": ["strong", "em"], "~~": ["del"] };

function emphasis(text, at, length, out, open) {
  const before = text[at - 1] ?? " ";
  const after = text[at + length] ?? " ";
  const mark = text.slice(at, at + length);
  const inWord = mark[0] === "_" && /[\p{L}\p{N}]/u.test(before) && /[\p{L}\p{N}]/u.test(after);
  if (!/\s/.test(before) && !inWord) {
    const opener = lastOpen(open, mark);
    if (opener >= 0 && open[opener].index < out.length - 1) {
      const { index } = open[opener];
      let inner = joined(out.splice(index).slice(1));
      for (const tag of WRAPPERS[mark.replaceAll("_", "*")]) inner = [element(tag, inner)];
      out.push(...inner);
      open.length = opener;
      return;
    }
  }
  if (!/\s/.test(after) && !inWord && open.length < MAX_OPEN) open.push({ mark, index: out.length });
  out.push(mark);
}

function lastOpen(open, mark) {
  for (let i = open.length - 1; i >= 0 && open[i].mark !== "["; i -= 1) if (open[i].mark === mark) return i;
  return -1;
}

function closeBracket(text, at, out, open) {
  let opener = open.length - 1;
  while (opener >= 0 && open[opener].mark !== "[") opener -= 1;
  const target = opener >= 0 && text[at + 1] === "(" ? linkTarget(text, at + 2) : null;
  if (opener >= 0) {
    const { index } = open[opener];
    open.length = opener;
    const href = target && safeLink(target.href);
    if (href) {
      const children = joined(out.splice(index).slice(1));
      const last = out[out.length - 1];
      if (typeof last === "string" && last.endsWith("!")) out[out.length - 1] = last.slice(0, -1); // an image: its link
      out.push({ tag: "a", attrs: { href }, children: children.length ? children : [href] });
      return target.end;
    }
  }
  out.push("]");
  return at + 1;
}

function linkTarget(text, from) {
  let depth = 0;
  for (let at = from; at < text.length && at < from + 2048 && text[at] !== "\n"; at += 1) {
    if (text[at] === "(") depth += 1;
    if (text[at] === ")" && depth-- === 0) {
      const href = text.slice(from, at).trim().split(/\s/)[0].replace(/^<|>$/g, "");
      return { href, end: at + 1 };
    }
  }
  return null;
}

function bareLink(text, at) {
  const from = text[at] === "<" ? at + 1 : at;
  if (!text.startsWith("http://", from) && !text.startsWith("https://", from)) return null;
  let end = from;
  while (end < text.length && !/[\s<>"`\\|]/.test(text[end])) end += 1;
  if (from > at) {
    if (text[end] !== ">") return null;
    return { href: text.slice(from, end), end: end + 1 };
  }
  while (end > from && /[.,;:!?'*_~\])]/.test(text[end - 1])) end -= 1;
  return end - from > 10 ? { href: text.slice(from, end), end } : null;
}

export function safeLink(href) {
  return /^(?:https?:\/\/|mailto:)[^\s\u0000-\u001f<>"]+$/i.test(href) ? href : null;
}

function joined(nodes) {
  const out = [];
  for (const node of nodes) {
    if (typeof node === "string" && typeof out[out.length - 1] === "string") out[out.length - 1] += node;
    else if (node !== "") out.push(node);
  }
  return out;
}

function element(tag, children) {
  return { tag, attrs: {}, children };
}

function isBlank(line) {
  return !/\S/.test(line);
}

// A tree as DOM nodes. The only way from a model's text into the page.
export function build(node, document) {
  if (typeof node === "string") return document.createTextNode(node);
  if (!TAGS.has(node.tag)) throw new Error("no such tag: " + node.tag);
  const made = document.createElement(node.tag);
  for (const [name, value] of Object.entries(node.attrs)) {
    if (!ATTRIBUTES.has(name)) throw new Error("no such attribute: " + name);
    if (name !== "href" || safeLink(value)) made.setAttribute(name, value);
  }
  if (node.tag === "a") {
    made.setAttribute("rel", "noopener noreferrer nofollow");
    made.setAttribute("target", "_blank");
  }
  for (const child of node.children) made.appendChild(build(child, document));
  return made;
}

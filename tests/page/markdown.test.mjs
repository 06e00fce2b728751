// The Markdown of the chat page: what becomes of a text, that nothing in it becomes a tag, and that it takes linear time.
import assert from "node:assert/strict";
import { test } from "node:test";

import { build, parse, safeLink } from "../../src/octavo/server/page/markdown.js";

function shown(node) {
  if (typeof node === "string") return node.replaceAll("<", "&lt;");
  const attrs = Object.entries(node.attrs).map(([name, value]) => ` ${name}="${value}"`).join("");
  return `<${node.tag}${attrs}>${node.children.map(shown).join("")}</${node.tag}>`;
}

const html = (text) => parse(text).map((block) => shown(block.node)).join("");

const CASES = {
  "# Hi **x** #": "<h1>Hi <strong>x</strong></h1>",
  "#hash": "<p>#hash</p>",
  "a *b* **c** ***d*** `e` ~~f~~": "<p>a <em>b</em> <strong>c</strong> <em><strong>d</strong></em> <code>e</code> <del>f</del></p>",
  "2 * 3 * 4 and snake_case_name": "<p>2 * 3 * 4 and snake_case_name</p>",
  "**never closed": "<p>**never closed</p>",
  "`` a ` b ``": "<p><code>a ` b</code></p>",
  "\\*not\\* \\<b": "<p>*not* &lt;b</p>",
  "one\ntwo  \nthree": "<p>one\ntwo<br></br>three</p>",
  "a\n\nb": "<p>a</p><p>b</p>",
  "- a\n- b\n  - c\n- d": "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
  "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
  "- a\n\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
  "1. a\n   ```py\n   x = 1\n     y\n   ```\n2. b": '<ol><li>a<pre data-language="py"><code>x = 1\n  y</code></pre></li><li>b</li></ol>',
  "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
  "a\n\n---\n***\nb": "<p>a</p><hr></hr><hr></hr><p>b</p>",
  "```\n<b>\n```\nx": "<pre><code>&lt;b></code></pre><p>x</p>",
  "~~~~\n```\n~~~~": "<pre><code>```</code></pre>",
  "```js\nlet a": '<pre data-language="js"><code>let a</code></pre>',
  "| a | b |\n|---|--:|\n| 1 | x\\|y |\n| 2 |": '<table><thead><tr><th>a</th><th class="right">b</th></tr></thead><tbody><tr><td>1</td><td class="right">x|y</td></tr><tr><td>2</td><td class="right"></td></tr></tbody></table>',
  "a | b": "<p>a | b</p>",
  "[t](https://a.b/c_(d)) ![i](http://x/y.png)": '<p><a href="https://a.b/c_(d)">t</a> <a href="http://x/y.png">i</a></p>',
  "<https://z.example> and https://q.example/x.": '<p><a href="https://z.example">https://z.example</a> and <a href="https://q.example/x">https://q.example/x</a>.</p>',
  "[**b**](https://a.example)": '<p><a href="https://a.example"><strong>b</strong></a></p>',
  "[a] [b](c)": "<p>[a] [b](c)</p>",
};

for (const [text, expected] of Object.entries(CASES)) {
  test(JSON.stringify(text), () => assert.equal(html(text), expected));
}

const HOSTILE = [
  "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert(1))",
  "[x](data:text/html,<script>1</script>)", "[x](java\tscript:alert(1))", "<javascript:alert(1)>", "![x](javascript:alert(1))",
  "[x](vbscript:x)", "[x](//evil.example)", "[x](https://a\" onclick=\"alert(1))", "```\"><script>\nx\n```", "[x](\u0001javascript:1)",
  "[x](file:///etc/passwd)", "<a href='javascript:1'>x</a>", "&lt;script&gt;", "[x](https://a<b>)",
];

function elements(node) {
  return typeof node === "string" ? [] : [node, ...node.children.flatMap(elements)];
}

test("nothing hostile becomes a tag, a handler or a link", () => {
  for (const text of HOSTILE) {
    const nodes = parse(text).flatMap((block) => elements(block.node));
    for (const node of nodes) {
      assert.ok(["p", "pre", "code", "a"].includes(node.tag), text);
      for (const [name, value] of Object.entries(node.attrs)) {
        assert.ok(name === "data-language" || (name === "href" && /^https?:\/\/[^"<>\s]+$/.test(value)), text);
      }
    }
  }
});

test("only known tags and attributes are built", () => {
  const made = [];
  const fake = {
    createTextNode: (text) => text,
    createElement: (tag) => ({ tag, set: {}, setAttribute(name, value) { this.set[name] = value; }, appendChild: (child) => made.push(child) }),
  };
  assert.equal(build("<b>", fake), "<b>");
  assert.throws(() => build({ tag: "script", attrs: {}, children: [] }, fake));
  assert.throws(() => build({ tag: "p", attrs: { onclick: "x" }, children: [] }, fake));
  const link = build({ tag: "a", attrs: { href: "javascript:1" }, children: ["x"] }, fake);
  assert.deepEqual(link.set, { rel: "noopener noreferrer nofollow", target: "_blank" });
  assert.equal(safeLink("mailto:a@b.example"), "mailto:a@b.example");
});

test("a text cut anywhere is read, and finished blocks keep their source", () => {
  const text = Object.keys(CASES).join("\n\n");
  for (let end = 0; end <= text.length; end += 1) parse(text.slice(0, end));
  const [first] = parse(text);
  assert.equal(parse(text + "\n\nmore")[0].source, first.source);
});

test("time grows with the length, whatever the text", () => {
  const size = 50_000;
  for (const piece of [
    "*", "_", "`", "[", "]", "[a](", "> ", "- ", "*a ", "_a_b", "`a``", "|", "#", "~~", "```\n", "- a\n", "- a\n\n", "1. a\n  ", "http://", "<",
    "\\", "a|b\n-|-\n", "![", "**a*", "\n",
  ]) {
    const text = piece.repeat(Math.ceil(size / piece.length));
    const begin = performance.now();
    parse(text);
    assert.ok(performance.now() - begin < 2000, JSON.stringify(piece));
  }
});

// The settings beside the conversation: kept for this tab, the theme for good.

const FORM = document.getElementById("sampling");
const INTEGERS = new Set(["top_k", "max_tokens", "seed"]);
const TEXTS = new Set(["system", "stop", "key"]);
const STORE = "octavo.settings";
const THEMES = ["", "light", "dark"];

export function key() {
  return FORM.elements.key.value.trim();
}

export function systemPrompt() {
  return FORM.elements.system.value.trim();
}

// What the fields say, under their names in the API; those that are empty or wrong are left out.
export function sampling() {
  const fields = {};
  for (const input of FORM.elements) {
    if (!input.name || TEXTS.has(input.name) || input.value === "" || !input.validity.valid) continue;
    fields[input.name] = INTEGERS.has(input.name) ? parseInt(input.value, 10) : parseFloat(input.value);
  }
  const stop = FORM.elements.stop.value;
  return stop ? { ...fields, stop: [stop] } : fields;
}

export function askForKey() {
  show(true);
  FORM.elements.key.focus();
}

export function onKeyChange(handler) {
  FORM.elements.key.addEventListener("change", handler);
}

export function show(open) {
  document.getElementById("settings").hidden = !open;
  document.getElementById("toggle-settings").setAttribute("aria-expanded", String(open));
}

export function isShown() {
  return !document.getElementById("settings").hidden;
}

function save() {
  const values = Object.fromEntries([...FORM.elements].filter((input) => input.name).map((i) => [i.name, i.value]));
  sessionStorage.setItem(STORE, JSON.stringify(values));
}

function restore() {
  const values = JSON.parse(sessionStorage.getItem(STORE) ?? "{}");
  for (const input of FORM.elements) if (input.name && values[input.name]) input.value = values[input.name];
}

function applyTheme() {
  const theme = localStorage.getItem("octavo.theme") ?? "";
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  document.querySelector("#theme b").textContent = theme || "auto";
}

export function nextTheme() {
  const at = THEMES.indexOf(localStorage.getItem("octavo.theme") ?? "");
  localStorage.setItem("octavo.theme", THEMES[(at + 1) % THEMES.length]);
  applyTheme();
}

FORM.addEventListener("input", save);
FORM.addEventListener("reset", () => setTimeout(save));
FORM.addEventListener("submit", (event) => event.preventDefault());
restore();
applyTheme();

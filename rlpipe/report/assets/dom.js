"use strict";
// Elements, text and figures. All text goes through `visible` into text nodes: nothing here, or in
// any other script of the page, turns a string into markup.

/** An element: `h("a.strong", {href: "#x"}, "text", child)`. Functions become event listeners. */
function h(tag, attributes, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else if (key in PROPERTIES) element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  fill(element, ...children);
  return element;
}
const PROPERTIES = { value: 1, checked: 1, disabled: 1, selected: 1, hidden: 1 };

function fill(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(String(child)));
  }
  return element;
}

// Control characters, marks of direction and other characters without a shape, lone surrogates:
// what could hide or reorder the text around it is spelt out.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udfff]/g;

function visible(text) {
  if (text.search(HIDDEN) < 0) return document.createTextNode(text);
  const fragment = document.createDocumentFragment();
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    fragment.append(text.slice(from, match.index));
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    const mark = document.createElement("span");
    mark.className = "hidden-character";
    mark.textContent = `U+${code}`;
    fragment.append(mark);
    from = match.index + match[0].length;
  }
  fragment.append(text.slice(from));
  return fragment;
}

const $ = (id) => document.getElementById(id);

function clear(element, ...children) {
  element.replaceChildren();
  return fill(element, ...children);
}

// Figures ------------------------------------------------------------------------------------

const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}\u00a0%`;
const words = (name) => String(name).replace(/_/g, " ");
const whole = (number) => Math.round(number).toLocaleString("en-US");

const plural = (number, name) => `${whole(number)} ${name}${number === 1 ? "" : "s"}`;

/** A number as short as its size allows. */
function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(size >= 1e7 ? 0 : 1)}\u00a0M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(size >= 1e5 ? 0 : 1)}\u00a0k`;
  if (Number.isInteger(value)) return String(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 1) return String(Number(value.toFixed(2)));
  if (size >= 0.001) return String(Number(value.toPrecision(3)));
  return value.toExponential(1);
}

/** A time for an axis, in one unit. */
function clock(seconds) {
  if (seconds < 120) return `${short(seconds)} s`;
  return seconds < 7200 ? `${short(seconds / 60)} min` : `${short(seconds / 3600)} h`;
}

function duration(seconds) {
  if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A moment in the reader's own time zone, of ISO text or of seconds since the epoch. */
function moment(when) {
  const date = new Date(typeof when === "number" ? 1000 * when : when);
  if (!when || Number.isNaN(date.getTime())) return "";
  return date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

function ago(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

// Code ---------------------------------------------------------------------------------------

// Prism's patterns take time that grows with the square of a text made for that purpose. So long
// texts stay plain, and so does all that comes once the time for what is on the page is used up.
const LONGEST_HIGHLIGHTED = { python: 8000, bash: 8000, yaml: 8000, json: 60000 };
const HIGHLIGHTING = 300; // milliseconds
let highlighting = HIGHLIGHTING;

/** Highlighted code. Prism only cuts it into tokens; the elements are made here. */
function code(text, language) {
  const element = h("code");
  const grammar = Object.hasOwn(LONGEST_HIGHLIGHTED, language) && Prism.languages[language];
  if (!grammar || text.length > LONGEST_HIGHLIGHTED[language] || highlighting < 0) return fill(element, text);
  const began = performance.now();
  const add = (parent, token) => {
    if (typeof token === "string") fill(parent, token);
    else if (Array.isArray(token)) token.forEach((one) => add(parent, one));
    else {
      const span = h("span", { class: `token ${token.type}` });
      add(span, token.content);
      parent.append(span);
    }
  };
  add(element, Prism.tokenize(text, grammar));
  highlighting -= performance.now() - began;
  return element;
}

// What the file or the server holds ------------------------------------------------------------

const parsed = () =>
  document.readyState === "loading"
    ? new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }))
    : Promise.resolve();

/** A compressed block of this file, inflated and forgotten again. */
async function inflate(name) {
  if (!$(name)) await parsed();
  const block = $(name);
  if (!block) return null;
  const bytes = Uint8Array.from(atob(block.textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** Data of the server that this page came from; null while it is the same as last time. */
async function ask(path, tags) {
  const seen = tags && tags[path];
  const answer = await fetch(path, { headers: seen ? { "If-None-Match": seen } : {}, cache: "no-store" });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  if (tags) tags[path] = answer.headers.get("ETag");
  return answer.json();
}

// Small parts ----------------------------------------------------------------------------------

/** One bar cut into labelled parts: `[{name, value, color, note, href}]`. */
function split(parts, format) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  const bar = h("div.split-bar", { role: "img", "aria-label": parts.map((p) => `${p.name} ${format(p.value)}`).join(", ") });
  for (const part of parts.filter((one) => one.value > 0)) {
    const piece = h(`span.fill-${part.color}`, { title: `${part.name}: ${format(part.value)}` });
    piece.style.flexGrow = part.value / total;
    bar.append(piece);
  }
  const legend = parts.map((part) =>
    h("li", null,
      h(`span.swatch.fill-${part.color}`),
      part.href ? h("a", { href: part.href }, part.name) : part.name,
      h("b", null, format(part.value)),
      total > 0 && h("span.faint", null, percent(part.value / total))));
  return h("div.split", null, bar, h("ul.legend", null, legend));
}

/** A table: heads, and rows of cells; cells that are numbers stand on the right. */
function table(heads, rows, kind = "") {
  const cell = (value) =>
    h("td", { class: isNumber(value) ? "number" : null }, typeof value === "number" ? whole(value) : value);
  const isNumber = (value) => typeof value === "number" || (typeof value === "string" && /^[\d.]+$/.test(value));
  const numeric = heads.map((_, n) => rows.length > 0 && rows.every((row) => isNumber(row[n])));
  return h("div.table-frame", null,
    h("table", { class: kind || null },
      h("thead", null, h("tr", null, heads.map((head, n) => h("th", { scope: "col", class: numeric[n] ? "number" : null }, head)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map(cell))))));
}

const chip = (text, kind) => h(`span.chip${kind ? `.chip-${kind}` : ""}`, null, text);

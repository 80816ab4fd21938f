"use strict";
// Asks for the view once a second and draws it. All text is set as text, never as markup.
const interval = 1000;
const byId = (id) => document.getElementById(id);

function element(name, text, tone) {
  const made = document.createElement(name);
  made.textContent = text;
  if (tone) made.className = tone;
  return made;
}

function row(line) {
  const made = document.createElement("tr");
  made.append(element("td", line.label, line.tone), element("td", line.text, line.tone), element("td", line.end));
  if (line.part !== null) {
    const bar = document.createElement("progress");
    bar.value = line.part;
    bar.setAttribute("aria-label", line.label);
    made.children[1].prepend(bar);
  }
  return made;
}

function panel(shown) {
  const section = document.createElement("section");
  const table = document.createElement("table");
  table.append(...shown.lines.map(row));
  section.append(element("h2", shown.title), table);
  return section;
}

function say(text, tone) {
  byId("state").textContent = text;
  byId("state").className = tone;
}

function draw(view) {
  document.title = `${view.state} - ${view.title}`;
  byId("title").textContent = view.title;
  say(view.state, view.tone);
  byId("notices").replaceChildren(...view.notices.map((notice) => element("div", notice)));
  byId("panels").replaceChildren(...view.panels.map(panel));
}

async function update() {
  let ended = false;
  try {
    const answer = await fetch("view.json", { cache: "no-store" });
    if (answer.ok) {
      const view = await answer.json();
      ended = view.ended;
      draw(view);
    }
  } catch {
    say("no answer: the job has ended, or this page has no connection to it", "bad");
  }
  if (!ended) setTimeout(update, interval);
}

update();

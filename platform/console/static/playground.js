// The playground: a chat over the public API, with a key that only this page's memory holds.
"use strict";

(() => {
  const byId = (id) => document.getElementById(id);
  const turns = [];
  let running = null;

  const say = (text) => { byId("chat-state").textContent = text; };

  const addTurn = (role, by, text) => {
    byId("no-turns").hidden = true;
    const turn = document.createElement("div");
    const name = document.createElement("span");
    const said = document.createElement("div");
    turn.className = `turn ${role}`;
    name.className = "by";
    name.textContent = by;
    said.className = "said";
    said.textContent = text;
    turn.append(name, said);
    byId("turns").append(turn);
    byId("turns").scrollTop = byId("turns").scrollHeight;
    return turn;
  };

  const setRunning = (controller) => {
    running = controller;
    byId("stop").hidden = !controller;
    byId("send").disabled = Boolean(controller);
  };

  const body = () => {
    const system = byId("system").value.trim();
    return {
      model: byId("model").value,
      messages: system ? [{ role: "system", content: system }, ...turns] : turns,
      temperature: Number(byId("temperature").value),
      max_tokens: Number(byId("max-tokens").value),
      stream: true,
      stream_options: { include_usage: true },
    };
  };

  async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
      }
    }
  }

  const message = async (response) => {
    try { return (await response.json()).error.message; } catch { return `The gateway answered ${response.status}.`; }
  };

  const stream = async (said, signal) => {
    const started = performance.now();
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${byId("key").value.trim()}` },
      body: JSON.stringify(body()),
      credentials: "omit",
      signal,
    });
    if (!response.ok) throw new Error(await message(response));
    let first = null;
    let usage = null;
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const text = event.choices?.[0]?.delta?.content;
      if (text) {
        first ??= performance.now();
        said.textContent += text;
        byId("turns").scrollTop = byId("turns").scrollHeight;
      }
      usage = event.usage ?? usage;
    }
    return { usage, ttft_ms: (first ?? performance.now()) - started, whole_ms: performance.now() - started };
  };

  const summary = ({ usage, ttft_ms, whole_ms }) => {
    const parts = [`first token ${Math.round(ttft_ms)} ms`, `whole ${(whole_ms / 1000).toFixed(2)} s`];
    if (usage) parts.unshift(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens`);
    return parts.join(" · ");
  };

  const send = async () => {
    const text = byId("message").value.trim();
    if (!text || running) return;
    if (!byId("key").value.trim()) {
      say("Paste a key of this tenant, or make one.");
      byId("key").focus();
      return;
    }
    turns.push({ role: "user", content: text });
    const asked = addTurn("user", "you", text);
    byId("message").value = "";
    const answer = addTurn("assistant", byId("model").value, "");
    const said = answer.querySelector(".said");
    const controller = new AbortController();
    setRunning(controller);
    say("The answer is coming…");
    try {
      const result = await stream(said, controller.signal);
      turns.push({ role: "assistant", content: said.textContent });
      answer.querySelector(".by").textContent += ` · ${summary(result)}`;
      say("The answer is complete.");
    } catch (error) {
      fail(error, asked, answer, said, text);
    }
    setRunning(null);
    byId("message").focus();
  };

  // What failed is not part of the conversation; the message can be sent again.
  const fail = (error, asked, answer, said, text) => {
    const stopped = error.name === "AbortError";
    if (stopped && said.textContent) {
      turns.push({ role: "assistant", content: said.textContent });
      say("Stopped; what came counts as used.");
      return;
    }
    turns.pop();
    byId("message").value = text;
    answer.classList.add("failed");
    said.textContent = stopped ? "Stopped before the first token." : error.message;
    asked.classList.add("unsent");
    say(stopped ? "Stopped." : "The request failed.");
  };

  byId("chat-form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  byId("settings-form").addEventListener("submit", (event) => event.preventDefault());
  byId("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", () => {
    running?.abort();
    turns.length = 0;
    byId("turns").replaceChildren(byId("no-turns"));
    byId("no-turns").hidden = false;
    say("");
  });
  byId("make-key").addEventListener("click", async () => {
    const form = byId("settings-form");
    const response = await fetch(form.dataset.keySource, {
      method: "POST",
      body: new URLSearchParams({ csrf: form.querySelector("[name=csrf]").value }),
    });
    if (!response.ok) { say("The key was not made. Reload the page and try again."); return; }
    byId("key").value = (await response.json()).key;
    say("A key was made. It ends by itself, and is listed under Keys.");
    byId("message").focus();
  });
})();

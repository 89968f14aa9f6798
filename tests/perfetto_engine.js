// Runs Perfetto's own trace processor (WebAssembly) in Node: requests on stdin, replies on stdout.
//
// node perfetto_engine.js FOLDER, where FOLDER holds the build of Perfetto's UI: engine_bundle.js
// and trace_processor.wasm. The bytes are those of TraceProcessorRpcStream.
"use strict";
const fs = require("fs");
const path = require("path");
const folder = process.argv[2];

globalThis.self = globalThis;
globalThis.WorkerGlobalScope = function () {};
globalThis.location = { href: "http://localhost/engine_bundle.js" };
globalThis.importScripts = () => {};
globalThis.window = undefined;
console.log = console.warn = console.error = (...words) => process.stderr.write(words.join(" ") + "\n");
const read = (url) => fs.readFileSync(path.join(folder, path.basename(String(url).split("?")[0])));
globalThis.fetch = async (url) =>
  new Response(read(url), { headers: { "Content-Type": "application/wasm" } });
// The engine reads its program at once.
globalThis.XMLHttpRequest = class {
  open(verb, url) {
    this.url = url;
  }
  send() {
    const data = read(this.url);
    this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
  }
};
// The build is for browsers only: without `process` it takes itself for a worker of one.
const code = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
new Function("process", code)(undefined);

const port = { postMessage: (data) => fs.writeSync(1, data) };
globalThis.onmessage({ data: port });

// The engine is ready when it has allocated the place for requests.
const requests = new Uint8Array(fs.readFileSync(0));
let tries = 0;
const begin = () => {
  try {
    port.onmessage({ data: requests });
  } catch (error) {
    if (++tries > 100) throw error;
    setTimeout(begin, 200);
  }
};
setTimeout(begin, 200);

// Reads bodies as Express applications do: body-parser's two form readers (`qs` and
// `querystring`), busboy for multipart forms, `JSON.parse`; and both readers of queries.
//
// One case a line on stdin, one array a line on stdout: every text that an application could
// take for the name. A body that is refused names nobody.
import { createRequire } from "node:module";
import querystring from "node:querystring";
import readline from "node:readline";

const tools = process.argv[2];
const qs = createRequire(`${tools}/express/`)("qs");
const busboy = createRequire(`${tools}/busboy/`)("busboy");

// As body-parser sets qs for `extended: true`, and as others commonly do.
const settings = [
  { allowPrototypes: true, arrayLimit: 100, depth: 32, parameterLimit: 1000 },
  { allowDots: true },
  { comma: true },
  { delimiter: /[&;]/ },
  { charsetSentinel: true },
];

function leaves(value) {
  if (typeof value === "string") return [value];
  if (typeof value === "number") return [String(value)];
  if (value === null || typeof value !== "object") return [];
  return Object.values(value).flatMap(leaves);
}

function at(value, path) {
  for (const name of path) value = value?.[name];
  return leaves(value);
}

function attempt(read) {
  try {
    return read();
  } catch {
    return [];
  }
}

function form(text, one) {
  const found = settings.flatMap((setting) => attempt(() => at(qs.parse(text, setting), one.path)));
  const flat = attempt(() => querystring.parse(text));
  return [...found, ...leaves(flat[one.field])];
}

function multipart(one) {
  return new Promise((done) => {
    const found = [];
    const finish = () => done(found);
    try {
      const reader = busboy({ headers: { "content-type": one.type } });
      const nested = [];
      reader.on("field", (name, value) => {
        if (name === one.field) found.push(value);
        nested.push(`${encodeURIComponent(name)}=${encodeURIComponent(value)}`);
      });
      reader.on("file", (_, stream) => stream.resume());
      reader.on("error", finish);
      reader.on("close", () => {
        // multer nests names as `append-field` does, which follows the brackets of `qs`.
        found.push(...attempt(() => at(qs.parse(nested.join("&")), one.path)));
        finish();
      });
      reader.end(Buffer.from(one.body, "latin1"));
    } catch {
      finish();
    }
  });
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const one = JSON.parse(line);
  const body = Buffer.from(one.body, "latin1");
  const found = form(one.query, one);
  if (one.type.startsWith("multipart/")) found.push(...(await multipart(one)));
  else if (one.type === "application/json")
    found.push(...attempt(() => at(JSON.parse(body.toString("utf8").replace(/^\ufeff/, "")), one.path)));
  else found.push(...form(body.toString("utf8"), one));
  console.log(JSON.stringify(found.map((text) => text.toWellFormed?.() ?? text)));
}

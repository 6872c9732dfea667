// A login as single-page applications have it: JSON, and 200 or 401.
const express = require("express");
const { createHash } = require("node:crypto");

const hash = (text) => createHash("sha256").update(String(text)).digest("hex");
const users = new Map([["ann", hash("right")]]);
let verified = 0;
const app = express();
app.post("/api/login", express.json(), async (request, response) => {
  verified += 1;
  const name = request.body.user.name.trim().toLowerCase();
  // As long as a password hash takes: guesses sent at once are under way together.
  await new Promise((done) => setTimeout(done, 300));
  if (users.get(name) === hash(request.body.password)) {
    return response.json({ token: "t" });
  }
  return response.status(401).json({ error: "wrong user name or password" });
});
app.get("/verified", (_, response) => response.send(String(verified)));
const server = app.listen(0, "127.0.0.1", () => console.log(server.address().port));

// Two servers of socket.io in processes of their own reach each other's clients through streams.

const assert = require("node:assert");
const { spawn } = require("node:child_process");
const { after, before, describe, test } = require("node:test");
const path = require("node:path");
const { io } = require("socket.io-client");

function started(library) {
  const server = spawn(process.execPath, [path.join(__dirname, "socket_io_server.js"), library], { stdio: ["ignore", "pipe", "inherit"] });
  return new Promise((resolve, reject) => {
    server.once("exit", (code) => reject(new Error(`the server ended: ${code}`)));
    server.stdout.once("data", (data) => resolve({ server, port: Number(data) }));
  });
}

function told(client) {
  return new Promise((resolve) => client.once("told", resolve));
}

function asked(client, ...words) {
  return client.timeout(10000).emitWithAck(...words);
}

for (const library of ["redis", "ioredis"]) {
  describe(`with ${library}`, () => {
    let servers, a, b;

    before(async () => {
      servers = await Promise.all([started(library), started(library)]);
      [a, b] = servers.map(({ port }) => io(`http://127.0.0.1:${port}`));
      for (const client of [a, b]) {
        client.on("question", (done) => done(client.id));
        if (!client.connected) await new Promise((resolve) => client.once("connect", resolve));
      }
      // The servers know of each other once heartbeats have come through.
      for (const client of [a, b]) {
        while ((await asked(client, "sockets")) < 2) await new Promise((resolve) => setTimeout(resolve, 100));
      }
    });

    after(() => {
      [a, b].forEach((client) => client.disconnect());
      servers.forEach(({ server }) => server.kill("SIGKILL"));
    });

    test("a broadcast reaches the clients of both", async () => {
      const both = Promise.all([told(a), told(b)]);
      a.emit("to all", "hello");
      assert.deepStrictEqual(await both, ["hello", "hello"]);
    });

    test("a message to the others leaves out its sender", async () => {
      const other = told(b);
      let own = false;
      a.once("told", () => { own = true; });
      a.emit("to others", "hello");
      assert.strictEqual(await other, "hello");
      assert.strictEqual(own, false);
      a.removeAllListeners("told");
    });

    test("a room spans both", async () => {
      await asked(b, "join", "room");
      const other = told(b);
      a.emit("to room", "room", "inside");
      assert.strictEqual(await other, "inside");
    });

    test("a thousand messages come in order", async () => {
      const found = [];
      const all = new Promise((resolve) => b.on("told", (n) => found.push(n) === 1000 && resolve()));
      for (let n = 0; n < 1000; n += 1) a.emit("to all", n);
      await all;
      assert.deepStrictEqual(found, [...Array(1000).keys()]);
      b.removeAllListeners("told");
    });

    test("clients of both answer a question", async () => {
      assert.deepStrictEqual((await asked(a, "ask all")).sort(), [a.id, b.id].sort());
    });

    test("servers answer each other", async () => {
      assert.deepStrictEqual(await asked(a, "ask servers"), [servers[1].server.pid]);
    });

    test("a client that comes back gets what it has missed", async () => {
      const missed = told(b);
      b.io.engine.close();
      a.emit("to all", "missed");
      assert.strictEqual(await missed, "missed");
      assert.strictEqual(b.recovered, true);
    });

    test("a server disconnects the clients of another", async () => {
      await asked(b, "join", "doomed");
      const gone = new Promise((resolve) => b.once("disconnect", resolve));
      a.emit("drop", "doomed");
      assert.strictEqual(await gone, "io server disconnect");
    });
  });
}

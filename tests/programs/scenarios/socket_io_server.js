// A server of socket.io on the adapter of streams; it prints its port.

const { createServer } = require("node:http");
const { createAdapter } = require("@socket.io/redis-streams-adapter");
const { createClient } = require("redis");
const { Server } = require("socket.io");
const Redis = require("ioredis");

async function main() {
  let client;
  if (process.argv[2] === "ioredis") {
    client = new Redis({ port: Number(process.env.REDIS_PORT) });
  } else {
    client = createClient({ url: `redis://127.0.0.1:${process.env.REDIS_PORT}` });
    await client.connect();
  }
  const http = createServer();
  const io = new Server(http, {
    adapter: createAdapter(client, { readCount: 100, blockTimeInMs: 200 }),
    connectionStateRecovery: {},
  });
  io.on("connection", (socket) => {
    socket.on("join", (room, done) => { socket.join(room); done(); });
    socket.on("to room", (room, text) => io.to(room).emit("told", text));
    socket.on("to all", (text) => io.emit("told", text));
    socket.on("to others", (text) => socket.broadcast.emit("told", text));
    socket.on("ask all", async (done) => {
      done(await io.timeout(5000).emitWithAck("question"));
    });
    socket.on("ask servers", async (done) => {
      done(await io.serverSideEmitWithAck("name"));
    });
    socket.on("sockets", async (done) => done((await io.fetchSockets()).length));
    socket.on("drop", (room) => io.in(room).disconnectSockets());
  });
  io.on("name", (done) => done(process.pid));
  http.listen(0, "127.0.0.1", () => console.log(http.address().port));
}

main();

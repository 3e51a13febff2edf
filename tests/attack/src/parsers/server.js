// Answers each request that is complete with what it was, as Node.js reads it. It reads nothing
// behind one that asks for an upgrade, whether or not that is granted: the connection ends there.
const [address, port] = process.argv.slice(2);
const http = require("node:http");

http
  .createServer({ maxHeaderSize: 65536, requestTimeout: 60000 }, (request, response) => {
    let length = 0;
    request.on("data", (chunk) => (length += chunk.length));
    request.on("end", () => {
      if (request.headers.upgrade) response.setHeader("Connection", "close");
      response.writeHead(204, { "X-Seen": `${request.method} ${request.url} ${length}` });
      response.end();
    });
  })
  .listen(Number(port), address);

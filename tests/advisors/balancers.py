"""A real nginx or HAProxy on loopback, in front of stand-ins."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import httpx

from otel_kvpolicy.standin import StandIn
from tests.dashboards.live import free_port
from tests.needs import program

HEADER = "x-kv-affinity"

NGINX = """\
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  client_max_body_size 8m; client_body_buffer_size 1m;
  map $http_x_kv_affinity $kv_key {{ "" $request_id; default $http_x_kv_affinity; }}
  upstream replicas {{
    {balance}
{servers}
  }}
  server {{
    listen 127.0.0.1:{port};
    location = /ready {{ return 204; }}
    location / {{ proxy_pass http://replicas; proxy_http_version 1.1; proxy_buffering off; }}
  }}
}}
"""

HAPROXY = """\
global
  maxconn 256
defaults
  mode http
  timeout connect 2s
  timeout client 30s
  timeout server 30s
  retries 3
  option redispatch 1
frontend calls
  bind 127.0.0.1:{port}
  monitor-uri /ready
  default_backend replicas
backend replicas
  {balance}
{servers}
"""

ROUND_ROBIN = {"nginx": "", "haproxy": "balance roundrobin"}
HASH = {
    "nginx": "hash $kv_key consistent;",
    "haproxy": f"balance hdr({HEADER})\n  hash-type consistent sdbm avalanche",
}
BOUNDED_HASH = f"{HASH['haproxy']}\n  hash-balance-factor 125"


class Balancer:
    """A load balancer in a process of its own.

    Args:
        kind: ``nginx`` or ``haproxy``.
        balance: directives that choose the replica.
        replicas: the servers behind it.
        folder: empty folder for its files.
    """

    def __init__(self, kind: str, balance: str, replicas: Sequence[StandIn], folder: Path) -> None:
        self._program = program(kind, package=kind)
        self._port = free_port()
        hosts = [urlsplit(replica.url).netloc for replica in replicas]
        servers = {
            "nginx": [f"    server {host} max_fails=1 fail_timeout=30s;" for host in hosts],
            "haproxy": [
                f"  server replica{i} {host} check inter 200 fall 1" for i, host in enumerate(hosts)
            ],
        }[kind]
        self._config = folder / f"{kind}.conf"
        self._config.write_text(
            {"nginx": NGINX, "haproxy": HAPROXY}[kind].format(
                folder=folder, port=self._port, balance=balance, servers="\n".join(servers)
            )
        )
        self._arguments = {
            "nginx": ["-p", str(folder), "-e", str(folder / "error.log"), "-c"],
            "haproxy": ["-db", "-f"],
        }[kind]
        self.base_url = f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> Balancer:
        self._process = subprocess.Popen(
            [self._program, *self._arguments, str(self._config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(200):
            try:
                httpx.get(f"http://127.0.0.1:{self._port}/ready", timeout=2)
                return self
            except httpx.TransportError:
                assert self._process.poll() is None, "the load balancer does not start"
                time.sleep(0.05)
        raise AssertionError("the load balancer does not answer")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(20)

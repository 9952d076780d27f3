"""The front door: Flower's control, runtime and fleet paths share a port; nginx publishes what a silo needs of them."""

# What a SuperNode with a registered key calls. `register-node` is not among them: the coordinator registers keys.
FLEET = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip


def configuration(loopback: str, port: int, inner: int, local: bool) -> str:
    """An nginx configuration that runs as an ordinary user; `local`: listen on this machine alone.

    Its paths are relative to the coordinator's folder, which may be moved.
    """
    address = f"{loopback}:{port}" if local else f"{port}"
    return f"""# Written by `coterie federation new`. Silos reach the fleet paths of Flower, and nothing else.
daemon off;
pid "nginx/nginx.pid";
error_log "logs/nginx.log" warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path "nginx/body";
    proxy_temp_path "nginx/proxy";
    fastcgi_temp_path "nginx/fastcgi";
    uwsgi_temp_path "nginx/uwsgi";
    scgi_temp_path "nginx/scgi";
    upstream superlink {{
        server {loopback}:{inner};
        keepalive 32;
        keepalive_timeout 4s;  # the SuperLink closes a connection that was idle for 5
    }}
    server {{
        listen {address} ssl;
        ssl_certificate "server.pem";
        ssl_certificate_key "server.key";
        ssl_protocols TLSv1.2 TLSv1.3;
        client_max_body_size 16m;  # Flower sends models in pieces of 5 MiB; the SuperLink limits their sum
        location ~ ^/v1/fleet/({"|".join(FLEET)})$ {{
            proxy_pass https://superlink;
            proxy_set_header Connection "";
            proxy_ssl_trusted_certificate "ca.crt";
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_read_timeout 300s;
        }}
        location / {{ return 403; }}
    }}
}}
"""

"""Programs for tests that try connections, in pods and in network namespaces. They need the standard library alone."""

CONNECT = """
import os, socket, sys, threading
def one(name, address, port):
    try:
        socket.create_connection((address, int(port)), 2).close()
    except OSError:
        return
    os.write(1, f"{name}\\n".encode())  # print would write the line in two parts, and others between them
threads = [threading.Thread(target=one, args=each.split("/")) for each in sys.argv[1:]]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""
"""Prints the names of the targets that take a connection. Arguments: ``<name>/<address>/<port>``."""

SERVE = """
import socket, sys, threading
def answer(connection):
    with connection:
        while received := connection.recv(9):
            connection.sendall(received)
def serve(listener):
    while True:
        threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()
listeners = [socket.create_server(("0.0.0.0", int(port))) for port in sys.argv[1:]]
print("ready", flush=True)
for each in listeners[1:]:
    threading.Thread(target=serve, args=[each], daemon=True).start()
serve(listeners[0])
"""
"""Sends back what it receives. Arguments: ports."""

HOLD = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
while True:
    connection.sendall(b"x")
    assert connection.recv(1) == b"x"
    print("answered", flush=True)
    time.sleep(0.2)  # the period of a client
"""
"""Prints a line for each answer on one connection to a server, and fails without an answer. Arguments: its address and
port."""

ADVERTISE = """
import socket
index = socket.if_nametoindex("eth0")
with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as one:
    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
    one.sendto(bytes((134, 0, 0, 0, 64, 0, 7, 8)) + bytes(8), ("ff02::1", 0, 0, index))
"""
"""Says to all neighbours at ``eth0``, by IPv6: I am a router."""

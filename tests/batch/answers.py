"""Record what `drive` delivers, and check how ports answer clients without the certificate."""

import socket
import ssl

import engine_tasks
import psutil

from glmfit.batch.driver import drive


class Answers:
    """Record of the receipts and losses that `drive` reports."""

    def __init__(self):
        self.receipts, self.lost, self.said = {}, {}, []

    def on_receipt(self, task, receipt):
        assert task not in self.receipts
        self.receipts[task] = receipt

    def on_lost(self, task, error):
        assert task not in self.lost
        self.lost[task] = error


def carry(client, function, tasks, **options):
    answers = Answers()
    drive(client, function, tasks, on_receipt=answers.on_receipt, on_lost=answers.on_lost, **options)
    return answers


def do_and_carry(client, tasks, do, **options):
    """Run the tasks, and call `do` when the first receipt arrives."""
    answers = Answers()

    def on_receipt(task, receipt):
        if not answers.receipts:
            do()
        answers.on_receipt(task, receipt)

    drive(client, engine_tasks.perform, tasks, on_receipt=on_receipt, on_lost=answers.on_lost, **options)
    return answers


def listening(pids):
    """Ports on which these processes listen, with their addresses: {port: address}."""
    found = {}
    for pid in pids:
        for connection in psutil.Process(pid).net_connections(kind="all"):
            if connection.status == psutil.CONN_LISTEN:
                found[connection.laddr.port] = connection.laddr.ip
    return found


def without_encryption(port):
    """Answer of a port to a client that sends plain text."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        try:
            return plain.recv(1000)
        except ConnectionError:
            return b""


def without_certificate(port):
    """Answer of a port to a TLS client without the certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
        try:
            with context.wrap_socket(plain) as talk:
                talk.sendall(b"GET / HTTP/1.0\r\n\r\n")
                return talk.recv(1000)
        except (ssl.SSLError, ConnectionError):
            return b""

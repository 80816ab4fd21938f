"""The command of a server as pages show it: one flag a line, with variables for what is of one machine alone."""

from cm4vllm.common.secrets.command_lines import published_command, published_words, shell_line
from cm4vllm.common.secrets.redaction import variable
from cm4vllm.records.published_server import container_words, hosts_of, server_words
from cm4vllm.records.server import ServerRecord


def server_command(server: ServerRecord, model_path: str) -> str:
    """Return the server's command, one flag a line; empty for a server that was running already."""
    env, words = server_words(server, model_path)
    return shell_line(words, env)


def container_command(server: ServerRecord, model_path: str) -> str:
    """Return the container engine's command that ran the server, with the same variables."""
    if server.container is None:
        return ""
    words = container_words(server.container, server.argv)
    if model_path:  # in a mount it is not a word of its own
        words = [word.replace(model_path, variable("MODEL")) for word in words]
    return shell_line(published_words(words, {model_path: "MODEL"}, hosts_of(server)))


def typed_command(command: str, server: ServerRecord) -> str:
    """Return the typed command, one flag a line, with variables for paths, servers and secrets."""
    return published_command(command, hosts=hosts_of(server))

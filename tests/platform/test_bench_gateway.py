"""The benchmark of the gateway: a real gateway, a worker and this process, over real sockets."""

import json

from typer.testing import CliRunner

from loraplex.platform.cli.bench import app

KEYS = {
    *("admits_per_s", "admit_p99_ms", "lua_per_s", "cpu_us_per_request"),
    *("cpu_us_per_token_paced", "cpu_us_per_token_flat_out"),
}
SHORT = ["--seconds", "0.2", "--clients", "2", "--rate", "20", "--streams", "2"]


def test_a_gateway_is_measured_alone_in_a_process_of_its_own() -> None:
    result = CliRunner().invoke(app, ["gateway", *SHORT, "--json"])
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    costs = json.loads(line)
    assert costs.keys() == KEYS
    assert costs["admits_per_s"] > 0
    assert costs["cpu_us_per_request"] > 0

# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/envoy are what Envoy takes, and say what the guide says of them."""
import os
import subprocess

import pytest

from conftest import ENVOY, MODES, ROOT, asking, cluster, configuration, manager, route


@pytest.mark.parametrize("name", MODES)
def test_envoy_takes_the_file_as_it_is(name):
    p = subprocess.run([ENVOY, "--mode", "validate", "-c", os.path.join(ROOT, "deploy/envoy", f"{name}.yaml")], capture_output=True, text=True, timeout=120, check=False)
    assert p.returncode == 0 and " OK" in p.stdout, p.stdout + p.stderr
    assert "eprecated" not in p.stdout + p.stderr


@pytest.mark.parametrize("name", MODES)
def test_what_both_files_need_is_in_both(name):
    conf = configuration(name)
    stripped = {m["remove"] for m in manager(conf)["early_header_mutation_extensions"][0]["typed_config"]["mutations"]}
    assert stripped >= {"x-gateway-destination-endpoint", "x-prefiller-host-port"}
    picker = cluster(conf, "kvroute")
    assert picker["common_lb_config"]["healthy_panic_threshold"]["value"] == 0 and picker["health_checks"]
    assert asking(conf)["grpc_service"]["retry_policy"]["num_retries"] > 0 and "retry_policy" not in asking(conf)["grpc_service"]["envoy_grpc"]
    assert "upstream.address" in asking(conf)["response_attributes"] and asking(conf)["metadata_options"]
    assert "timeout" in route(conf)


def test_the_modes_are_those_that_they_are_called_after():
    duplex, buffered = (asking(configuration(m)) for m in MODES)
    assert {duplex["processing_mode"][f"{side}_body_mode"] for side in ("request", "response")} == {"FULL_DUPLEX_STREAMED"}
    assert [buffered["processing_mode"][f"{side}_body_mode"] for side in ("request", "response")] == ["BUFFERED", "STREAMED"]
    assert buffered["failure_mode_allow"] and not duplex.get("failure_mode_allow")

import pytest

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.predict.cluster import cluster_of
from host.errors import UserError


def placed(tmp_path, *words, **own):
    config = compose_config(["algo=allreduce", *words])
    cluster = cluster_of(own)
    assert cluster is not None
    cluster.place(config)
    return make_plan(config, tmp_path)


def test_a_cluster_has_its_nics_between_nodes_and_nothing_inside(tmp_path):
    plan = placed(tmp_path, "net=wan", nodes="3x4", nic_gbit="25", rails="2")
    assert plan.workers == 12
    assert plan.nodes == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
    assert plan.net.node_link("up").rate_mbit == 50_000
    assert (
        plan.net.path(0, 4).delay_ms == compose_config(["algo=allreduce", "net=wan"]).net.delay_ms
    )
    inside = plan.net.path(0, 1)
    assert (inside.rate_mbit, inside.delay_ms, inside.loss_pct) == (None, 0, 0)


def test_the_rate_of_the_network_is_a_nics_by_default(tmp_path):
    assert placed(tmp_path, "net=dc_10g", nodes="2x8").net.node_link("up").rate_mbit == 10_000
    unshaped = placed(tmp_path, "net=none", nodes="2x8").net
    assert unshaped.node_link("up").rate_mbit is None


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ({"nodes": "16"}, "nodes=16 cannot be read: write nodes=16x8 nic_gbit=25 rails=8"),
        ({"nodes": "2x2", "nic_gbit": "fast"}, "nodes=2x2 nic_gbit=fast cannot be read"),
        ({"nodes": "0x8"}, "nodes=0x8 is no cluster"),
        ({"nodes": "2x8", "nic_gbit": "0"}, "nic_gbit=0 carries nothing"),
        ({"nodes": "2x8", "rails": "0"}, "rails=0: a node has 1 to 10,000 NICs"),
        ({"nodes": "2x8", "rails": "1" + 400 * "0"}, ",000: a node has 1 to 10,000 NICs"),
        ({"nic_gbit": "10"}, "nic_gbit is of a node: say nodes=16x8, too"),
        ({"inside": "pcie"}, "inside is of a node: say nodes=16x8, too"),
    ],
)
def test_what_is_no_cluster_is_refused(own, complaint):
    with pytest.raises(UserError, match=complaint):
        cluster_of(own)


def test_nodes_of_a_networks_own_have_links_inside_and_no_nics():
    assert cluster_of({"inside": "pcie"}, has_nodes=True) is None
    with pytest.raises(UserError, match="rails is of a node: say nodes=16x8, too"):
        cluster_of({"rails": "2"}, has_nodes=True)


def test_a_network_with_nodes_of_its_own_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"net\.nodes and nodes=2x2 both say what links the workers"
    ):
        placed(tmp_path, "net=two_sites", nodes="2x2")

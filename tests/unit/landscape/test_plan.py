"""Addresses and names: computed, never overlapping, as the documentation gives them."""

from ipaddress import IPv4Address, IPv4Network, IPv6Network
from itertools import combinations
from pathlib import Path

import pytest

from landscape import plan as plans
from landscape.errors import LandscapeError
from landscape.plan import MAX_LANDSCAPES, SEEDS, ZONES, Plan


def test_addresses_of_the_default_landscape_are_those_of_the_documentation():
    plan = Plan("default", 0, "1.37.1")

    assert plan.temporal_address == "198.18.0.1:7233"
    assert plan.temporal_ui == "http://198.18.0.1:8233"
    assert plan.object_store_endpoint == "http://198.18.0.1:9002"
    assert {cluster.name: cluster.server for cluster in plan.clusters} == {
        "garden": "https://198.18.0.1:6443",
        "cloud": "https://198.18.1.2:6443",
        "seed-1": "https://198.18.2.2:6443",
        "seed-2": "https://198.18.3.2:6443",
    }
    assert plan.machine_network == "198.18.8.0/22"
    assert plan.machine_network_ipv6 == "2001:2:0:8::/64"
    assert plan.public_network_ipv6 == "2001:2:0:4::/64"
    assert plan.dns_address_ipv6 == "2001:2:0:9::1"
    assert plan.gateway_addresses("seed-1") == {"198.18.2.2": "2001:2:0:9::11", "198.18.2.5": "2001:2:0:9::12"}
    assert plan.gateway_addresses("seed-2") == {"198.18.3.2": "2001:2:0:9::21", "198.18.3.5": "2001:2:0:9::22"}
    assert plan.dns_zone == "default.garden.test"
    assert plan.cluster("seed-2").pods == "100.96.2.0/24"
    assert plan.cluster("seed-2").dns_address == "100.64.2.10"


def test_two_landscapes_share_no_address_and_no_name():
    """Tests must never touch a user's demo."""
    landscapes = [Plan(f"l{index}", index, "1.37.1", zonal=SEEDS) for index in range(MAX_LANDSCAPES)]

    for one, other in combinations(landscapes, 2):
        assert not any(mine.overlaps(theirs) for mine in _networks_ipv6(one) for theirs in _networks_ipv6(other))
        for mine in _networks(one):
            assert not any(mine.overlaps(theirs) for theirs in _networks(other)), (one.name, other.name)
        assert not set(one.namespaces) & set(other.namespaces)
        assert not {link.left_interface for link in one.links if link.left_netns is None} & {
            link.left_interface for link in other.links if link.left_netns is None
        }


@pytest.mark.parametrize("index", range(MAX_LANDSCAPES))
def test_all_addresses_are_of_private_ranges(index):
    plan = Plan("any", index, "1.37.1", zonal=SEEDS)
    private = [IPv4Network("198.18.0.0/15"), IPv4Network("100.64.0.0/10")]

    assert all(any(network.subnet_of(range_) for range_ in private) for network in _networks(plan))
    assert all(network.subnet_of(IPv6Network("2001:2::/48")) for network in _networks_ipv6(plan))
    assert not any(one.overlaps(other) for one, other in combinations(_networks_ipv6(plan), 2))
    assert not IPv4Network("198.19.255.0/24").subnet_of(plan.block), "the tunnels' range"


@pytest.mark.parametrize("index", [0, 3, 4, 15])
def test_no_two_links_of_a_landscape_share_a_network(index):
    plan = Plan("any", index, "1.37.1", zonal=SEEDS)
    links = [IPv4Network(f"{link.left_address}/30", strict=False) for link in plan.links]

    assert len(set(links)) == len(links)
    assert not any(link.overlaps(IPv4Network(plan.machine_network)) for link in links)
    assert all(link.subnet_of(plan.block) for link in links)


def test_a_zonal_seed_has_a_node_in_each_zone():
    plan = Plan("default", 0, "1.37.1", zonal=("seed-2",))
    first, zonal = plan.seeds

    assert [node.name for node in first.nodes] == ["seed-1"]
    assert {node.name: node.zone for node in zonal.nodes} == {f"seed-2-{zone}": zone for zone in ZONES}
    assert zonal.pods == "100.96.8.0/22"
    assert zonal.node_network == "198.18.15.16/28"
    for node in zonal.nodes:
        assert IPv4Network(node.pods).subnet_of(IPv4Network(zonal.pods))
        assert IPv4Address(node.address) in IPv4Network(zonal.node_network)
    assert len({(node.netns, node.cgroup, node.directory, node.pods) for node in zonal.nodes}) == len(ZONES)
    assert {node.netns for node in zonal.nodes} < set(plan.namespaces)


def test_a_seed_loses_its_power_with_all_its_nodes_and_a_node_alone():
    plan = Plan("default", 0, "1.37.1", zonal=("seed-2",))

    assert plan.places == ("seed-1", "seed-2", "seed-2-0", "seed-2-1", "seed-2-2")
    assert plan.nodes_of("seed-2") == plan.cluster("seed-2").nodes
    assert [node.name for node in plan.nodes_of("seed-2-1")] == ["seed-2-1"]


def test_a_seed_has_no_link_to_the_other_seed():
    plan = Plan("any", 1, "1.37.1")
    ends = {frozenset((link.left_netns, link.right_netns)) for link in plan.links}

    assert frozenset((plan.netns("seed-1"), plan.netns("seed-2"))) not in ends


def test_names_of_interfaces_fit_the_kernel():
    plan = Plan("a-very-long-name-20", 15, "1.37.1", zonal=SEEDS)

    assert all(len(name) <= 15 for link in plan.links for name in (link.left_interface, link.right_interface))


@pytest.mark.parametrize("name", ["", "Upper", "with space", "../up", "-dash", "a" * 21])
def test_a_bad_name_is_refused_before_anything_is_made(name):
    with pytest.raises(LandscapeError, match="is no landscape name"):
        Plan(name, 1, "1.37.1")


def test_sockets_of_the_longest_name_fit_into_a_socket_address():
    plan = Plan("a" * 20, 15, "1.37.1", zonal=SEEDS)
    nodes = [node for cluster in plan.clusters for node in cluster.nodes]

    assert len(nodes) == 7
    assert all(len(f"{node.containerd_socket}.ttrpc") < 108 for node in nodes)


def test_what_was_chosen_for_seeds_is_kept_with_the_landscape(tmp_path):
    plan = Plan("mine", 1, "1.37.1", zonal=("seed-1",), closed=True, node_logs=True, state_home=tmp_path)
    plan.save()

    assert plans.load("mine", tmp_path) == plan


def test_an_unknown_cluster_is_answered_with_the_known_ones():
    with pytest.raises(LandscapeError, match="there are garden, cloud, seed-1, seed-2"):
        Plan("default", 0, "1.37.1").cluster("seed-3")


def test_the_default_landscape_always_gets_the_first_block(tmp_path):
    plans.choose("other", "1.37.1", tmp_path).save()

    assert plans.choose("default", "1.37.1", tmp_path).index == 0


def test_a_new_landscape_gets_the_lowest_free_block(tmp_path):
    for name in ("one", "two", "three"):
        plans.choose(name, "1.37.1", tmp_path).save()
    assert [plan.index for plan in plans.existing(tmp_path)] == [1, 3, 2]  # by name: one, three, two

    (tmp_path / "two" / "landscape.json").unlink()

    assert plans.choose("four", "1.37.1", tmp_path).index == 2


def test_without_a_free_block_the_error_names_a_remedy(tmp_path):
    for index in range(1, MAX_LANDSCAPES):
        Plan(f"l{index}", index, "1.37.1", state_home=tmp_path).save()

    with pytest.raises(LandscapeError, match="take one down first"):
        plans.choose("one-more", "1.37.1", tmp_path)


def test_a_saved_plan_is_found_again(tmp_path):
    plan = plans.choose("mine", "1.36.3", tmp_path)
    plan.save()

    assert plans.load("mine", tmp_path) == plan
    assert plans.load("other", tmp_path) is None


def test_files_next_to_the_landscapes_are_ignored(tmp_path: Path):
    (tmp_path / ".kernel-limits.json").write_text("{}")

    assert list(plans.existing(tmp_path)) == []


def _networks_ipv6(plan: Plan) -> list[IPv6Network]:
    texts = [plan.machine_network_ipv6, plan.public_network_ipv6, plan.cloud.services_ipv6, plan.dns_address_ipv6]
    texts += (each for seed in SEEDS for each in plan.gateway_addresses(seed).values())
    return [IPv6Network(each) for each in (*texts, *(link.ipv6 for link in plan.links if link.ipv6))]


def _networks(plan: Plan) -> list[IPv4Network]:
    cidrs = [cluster.services for cluster in plan.clusters] + [seed.pods for seed in plan.seeds if seed.pods]
    return [plan.block, *map(IPv4Network, cidrs)]


@pytest.mark.parametrize(
    ("options", "closed"), [({}, True), ({"open_seeds": True}, False), ({"zonal": ("seed-1",)}, False)]
)
def test_seeds_of_a_new_landscape_are_closed_unless_it_says_otherwise_or_one_is_zonal(tmp_path, options, closed):
    assert plans.choose("mine", "1.37.1", tmp_path, **options).closed is closed

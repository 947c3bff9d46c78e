"""Attacks that must fail. Each test names its actor, its asset and the finding that it stands for.

    @pytest.mark.attack(actor="T3", asset="A1", finding=2)

Actors: T1 project member or owner of a Shoot, T2 node of a Shoot, T3 seed or gardenlet, T4 extension controller,
T5 client of Temporal, of its UI, database or codec endpoint, T6 attacker on the network. Assets: A1 garden,
A2 control planes in seeds, A3 shoots, A4 backups, A5 Temporal, A6 names and routes, A7 supply chain.
docs/security.md describes them, and lists the tests of this folder.
"""

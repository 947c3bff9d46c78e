"""Models of druid.gardener.cloud: etcd clusters."""

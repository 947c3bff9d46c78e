package authorization

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"testing"

	"go.temporal.io/server/common/rpc/encryption"
)

type oneConfig struct {
	encryption.TLSConfigProvider
	config *tls.Config
}

func (o oneConfig) GetInternodeServerConfig() (*tls.Config, error) {
	return o.config, nil
}

func TestTemporalsInnerServicesAnswerEachOtherAlone(t *testing.T) {
	upstream := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return &tls.Config{}, nil }}
	config, err := ServersOnly{oneConfig{config: upstream}}.GetInternodeServerConfig()
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := config.GetConfigForClient(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range []*tls.Config{config, chosen} {
		for organizationName, want := range map[string]bool{
			"gardener.cloud:temporal:servers": true,
			"gardener.cloud:system:seeds":     false,
			"gardener.cloud:system:operators": false,
			"gardener.cloud:temporal:admins":  false,
		} {
			info := certified(t, pkix.RDNSequence{organization(organizationName), commonName("x")})
			if got := each.VerifyConnection(info.TLSConnection.State) == nil; got != want {
				t.Errorf("%s: %v", organizationName, got)
			}
		}
		if each.VerifyConnection(tls.ConnectionState{}) == nil {
			t.Error("no certificate is enough")
		}
	}
}

func TestWithoutTLSThereIsNothingToBound(t *testing.T) {
	if config, err := (ServersOnly{oneConfig{}}).GetInternodeServerConfig(); config != nil || err != nil {
		t.Errorf("%v, %v", config, err)
	}
}

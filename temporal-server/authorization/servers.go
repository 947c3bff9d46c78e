package authorization

import (
	"crypto/tls"
	"errors"
	"fmt"

	"go.temporal.io/server/common/rpc/encryption"
)

// Servers is the organization in the certificates of Temporal's services.
const Servers Role = "gardener.cloud:temporal:servers"

// ServersOnly refuses connections of clients to Temporal's inner services, which do not authorize calls. It checks the
// organization in certificates, because the same authority may sign the certificates of clients and of services.
type ServersOnly struct {
	encryption.TLSConfigProvider
}

// GetInternodeServerConfig returns the TLS configuration of a service that other services call.
func (s ServersOnly) GetInternodeServerConfig() (*tls.Config, error) {
	config, err := s.TLSConfigProvider.GetInternodeServerConfig()
	if err != nil || config == nil {
		return config, err
	}
	return forServers(config), nil
}

func forServers(config *tls.Config) *tls.Config {
	bounded := config.Clone()
	bounded.VerifyConnection = isOfServer
	if choose := config.GetConfigForClient; choose != nil {
		bounded.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if err != nil || chosen == nil {
				return chosen, err
			}
			return forServers(chosen), nil
		}
	}
	return bounded
}

func isOfServer(state tls.ConnectionState) error {
	if len(state.VerifiedChains) == 0 {
		return errors.New("the client has no verified certificate")
	}
	organization, name, err := subjectOf(state.VerifiedChains[0][0].RawSubject)
	if err != nil {
		return fmt.Errorf("certificate of another service: %w", err)
	}
	if Role(organization) != Servers {
		return fmt.Errorf("%q of %q is no service of Temporal", name, organization)
	}
	return nil
}

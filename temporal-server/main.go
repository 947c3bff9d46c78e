// Temporal's server with our authorization: it identifies clients by their certificates, and people also by tokens.
// See package authorization.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	_ "time/tzdata" // images without time zones

	"gardener/temporal-server/authorization"

	upstream "go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/metrics"
	_ "go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql"
	_ "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/common/rpc/encryption"
	"go.temporal.io/server/temporal"
	"google.golang.org/grpc"
)

const refusalsPerSecond = 10

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "temporal-server:", err)
		os.Exit(1)
	}
}

func run() error {
	file := flag.String("config-file", "", "Temporal's configuration; default: the embedded one, filled from the environment")
	services := flag.String("service", strings.Join(temporal.DefaultServices, ","), "services to run, separated by commas")
	namespaces := flag.String("namespaces", "default", "namespaces that clients may use, separated by commas")
	keyFile := flag.String("task-token-keys", "", "file with the keys that bind task tokens to clients; required by a frontend")
	tokenFile := flag.String("oidc-config", "", "file with the issuer of the tokens that name people; without it, all tokens are refused")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	configuration, err := load(*file)
	if err != nil {
		return fmt.Errorf("reading Temporal's configuration: %w", err)
	}
	names := strings.Split(*services, ",")
	if err := check(configuration); err != nil {
		return err
	}
	logger := log.NewZapLogger(log.BuildZapLogger(configuration.Log))
	tls, err := encryption.NewTLSConfigProviderFromConfig(configuration.Global.TLS, metrics.NoopMetricsHandler, logger, nil)
	if err != nil {
		return fmt.Errorf("reading certificates: %w", err)
	}
	refusals := log.NewThrottledLogger(logger, func() float64 { return refusalsPerSecond })
	interceptors, err := interceptorsOf(names, *keyFile, refusals)
	if err != nil {
		return err
	}
	people, err := peopleOf(*tokenFile, logger)
	if err != nil {
		return err
	}
	server, err := temporal.NewServer(
		temporal.ForServices(names),
		temporal.WithConfig(configuration),
		temporal.WithLogger(logger),
		temporal.InterruptOn(temporal.InterruptCh()),
		temporal.WithTLSConfigFactory(authorization.ServersOnly{TLSConfigProvider: tls}),
		temporal.WithAuthorizer(authorization.NewAuthorizer(strings.Split(*namespaces, ","), refusals)),
		temporal.WithClaimMapper(func(*config.Config) upstream.ClaimMapper { return authorization.ClaimMapper{People: people} }),
		temporal.WithChainedFrontendGrpcInterceptors(interceptors...),
	)
	if err != nil {
		return fmt.Errorf("making the services %s: %w", *services, err)
	}
	return server.Start()
}

func peopleOf(file string, logger log.Logger) (*authorization.People, error) {
	if file == "" {
		return nil, nil
	}
	configuration, err := authorization.ReadTokenConfig(file)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of tokens (-oidc-config): %w", err)
	}
	return authorization.NewPeople(context.Background(), configuration, logger)
}

func load(file string) (*config.Config, error) {
	if file != "" {
		return config.Load(config.WithConfigFile(file))
	}
	return config.Load(config.WithEmbedded())
}

// check fails if the configuration does not require client certificates. The server identifies clients by nothing else,
// and the history and matching services do not authorize calls.
func check(configuration *config.Config) error {
	tls := configuration.Global.TLS
	for name, group := range map[string]config.GroupTLS{"frontend": tls.Frontend, "internode": tls.Internode} {
		if !group.Server.RequireClientAuth || group.Server.CertFile == "" && group.Server.CertData == "" {
			return fmt.Errorf("global.tls.%s.server must have a certificate, and requireClientAuth", name)
		}
	}
	inner, found := configuration.Services[string(primitives.InternalFrontendService)]
	if !found {
		return errors.New("services must have an internal-frontend, by which Temporal's own workers ask")
	}
	if inner.RPC.HTTPPort != 0 {
		// The HTTP API of the internal frontend accepts clients' certificates, and treats each call as one of Temporal's
		// own services.
		return errors.New("services.internal-frontend.rpc must have no httpPort")
	}
	return nil
}

func interceptorsOf(services []string, keyFile string, refusals log.Logger) ([]grpc.UnaryServerInterceptor, error) {
	frontends := []string{string(primitives.FrontendService), string(primitives.InternalFrontendService)}
	if !slices.ContainsFunc(services, func(name string) bool { return slices.Contains(frontends, name) }) {
		return nil, nil
	}
	keys, err := authorization.ReadKeys(keyFile)
	if err != nil {
		return nil, fmt.Errorf("reading keys for task tokens (-task-token-keys): %w", err)
	}
	tokens, err := authorization.NewTokens(keys, refusals)
	if err != nil {
		return nil, err
	}
	return []grpc.UnaryServerInterceptor{authorization.NewCaller().Intercept, tokens.Intercept}, nil
}

package authorization

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
)

const (
	discoveryPath = "/.well-known/openid-configuration"

	keysEvery   = time.Minute
	keysRetry   = 5 * time.Second
	keysTimeout = 10 * time.Second
	// keysLife is the time for which keys stay valid while the issuer does not answer: it may have withdrawn them.
	keysLife      = time.Hour
	documentBytes = 1 << 20
	rsaBits       = 2048
)

// Issuer holds the keys of an OpenID Connect issuer, read from the issuer itself.
type Issuer struct {
	url    string
	caFile string
	logger log.Logger
	keys   atomic.Pointer[jose.JSONWebKeySet]
}

// NewIssuer returns an issuer without keys; Follow reads them. caFile names a PEM file with the authorities of the
// issuer's server; empty: the authorities of the machine.
func NewIssuer(address, caFile string, logger log.Logger) (*Issuer, error) {
	if err := checkHTTPS(address); err != nil {
		return nil, fmt.Errorf("issuer %q: %w", address, err)
	}
	return &Issuer{url: address, caFile: caFile, logger: logger}, nil
}

// Follow reads the issuer's keys each minute, until the context is done. While the issuer does not answer, Follow keeps
// the keys for an hour. Follow never stops the server, because processes connect without tokens.
func (i *Issuer) Follow(ctx context.Context) {
	read := time.Now()
	for ctx.Err() == nil {
		keys, err := i.read(ctx)
		switch {
		case err == nil:
			i.keys.Store(keys)
			read = time.Now()
		case ctx.Err() == nil:
			i.logger.Warn("Keys of the issuer of tokens cannot be read.", tag.String("issuer", i.url), tag.Error(err))
			if time.Since(read) > keysLife {
				i.keys.Store(nil)
			}
		}
		wait := keysEvery
		if i.keys.Load() == nil {
			wait = keysRetry
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// Keys returns the keys that sign tokens now. It fails while there are none.
func (i *Issuer) Keys() (*jose.JSONWebKeySet, error) {
	if keys := i.keys.Load(); keys != nil {
		return keys, nil
	}
	return nil, errors.New("the issuer's keys are not known yet, or could not be read for an hour")
}

func (i *Issuer) read(ctx context.Context) (*jose.JSONWebKeySet, error) {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	client, err := i.client()
	if err != nil {
		return nil, err
	}
	var document struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := getJSON(ctx, client, strings.TrimSuffix(i.url, "/")+discoveryPath, &document); err != nil {
		return nil, err
	}
	if document.Issuer != i.url {
		return nil, fmt.Errorf("the issuer calls itself %q", document.Issuer)
	}
	if err := checkHTTPS(document.JWKSURI); err != nil {
		return nil, fmt.Errorf("jwks_uri %q: %w", document.JWKSURI, err)
	}
	var all jose.JSONWebKeySet
	if err := getJSON(ctx, client, document.JWKSURI, &all); err != nil {
		return nil, err
	}
	var good jose.JSONWebKeySet
	for _, key := range all.Keys {
		if signsTokens(key) {
			good.Keys = append(good.Keys, key)
		}
	}
	if len(good.Keys) == 0 {
		return nil, fmt.Errorf("none of %d keys at %s is a public key with an ID for %v", len(all.Keys), document.JWKSURI, algorithms)
	}
	return &good, nil
}

// client reads the authorities again on each call, so that renewed authorities are used without a restart.
func (i *Issuer) client() (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if i.caFile != "" {
		content, err := os.ReadFile(i.caFile)
		if err != nil {
			return nil, fmt.Errorf("reading authorities of the issuer: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(content) {
			return nil, fmt.Errorf("%s holds no certificate in PEM", i.caFile)
		}
	}
	return &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, DisableKeepAlives: true},
		// A redirect could lead to a server that is not the issuer's, or to one without TLS.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

func getJSON(ctx context.Context, client *http.Client, address string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", address, response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, documentBytes)).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	return nil
}

func checkHTTPS(address string) error {
	parsed, err := url.Parse(address)
	if err != nil {
		return err
	}
	if parsed.Scheme != "https" || parsed.Host == "" || parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
		return errors.New("must be https://<host>/<path>, without user, query and fragment")
	}
	return nil
}

// signsTokens reports whether a key may sign tokens. It rejects symmetric keys, short keys, keys without an ID, and keys
// for another purpose.
func signsTokens(key jose.JSONWebKey) bool {
	if key.KeyID == "" || !key.Valid() || key.Use != "" && key.Use != "sig" {
		return false
	}
	var fits jose.SignatureAlgorithm
	switch public := key.Key.(type) {
	case *rsa.PublicKey:
		if public.N.BitLen() < rsaBits {
			return false
		}
		fits = jose.RS256
	case *ecdsa.PublicKey:
		if public.Curve != elliptic.P256() {
			return false
		}
		fits = jose.ES256
	default:
		return false
	}
	return key.Algorithm == "" || key.Algorithm == string(fits)
}

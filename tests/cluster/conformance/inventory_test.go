package conformance

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/pkg/features"
)

// TestInventory prints what the suite knows: every feature by name, and every test with the
// features that it needs. It needs no cluster. `cargo xtask conformance` compares releases by it.
func TestInventory(t *testing.T) {
	for feature := range features.AllFeatures {
		fmt.Println("feature", feature.Name)
	}
	for _, test := range tests.ConformanceTests {
		needs := make([]string, 0, len(test.Features))
		for _, feature := range test.Features {
			needs = append(needs, string(feature))
		}
		fmt.Println("test", test.ShortName, strings.Join(needs, " "))
	}
}

// SPDX-License-Identifier: Apache-2.0

// A Kubernetes API server as Kubernetes builds it, without the rest: scripts/kube.sh.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }

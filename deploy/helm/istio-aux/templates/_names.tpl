{{- /* Label by which Service and Deployment select the webhook's pods. */ -}}
{{- define "istio-aux.selector" -}}
app.kubernetes.io/name: {{ include "istio-aux.fullname" . }}
{{- end }}

{{- /* The name of the webhook's objects in the namespace. Those of the cluster are called istio-aux: one installation fits. */ -}}
{{- define "istio-aux.fullname" -}}
{{ .Values.fullnameOverride | default "istio-aux" }}
{{- end }}

{{- /* Keeps a pod out of the mesh, whose mutual TLS the API server does not speak: out of sidecars and of ambient mode. */ -}}
{{- define "istio-aux.outOfMesh" -}}
sidecar.istio.io/inject: "false"
istio.io/dataplane-mode: none
{{- end }}

{{- define "istio-aux.labels" -}}
{{ include "istio-aux.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The reference of an image. Takes a list: the root, and the image's key among the values. A released chart has the file
released-images.yaml, with the registry and the digests of its release. */ -}}
{{- define "istio-aux.image" -}}
{{- $root := index . 0 }}
{{- $key := index . 1 }}
{{- $image := index $root.Values.image $key }}
{{- $released := $root.Files.Get "released-images.yaml" | fromYaml }}
{{- $missing := "image.registry is empty: say where the images are, such as --set image.registry=registry.example/istio-aux (docs/install.md)" }}
{{- $registry := $root.Values.image.registry | default (get $released "registry") }}
{{- $name := printf "%s/%s" (required $missing $registry | trimSuffix "/") $image.name }}
{{- $tag := $image.tag | default $root.Values.image.tag }}
{{- $digest := $image.digest }}
{{- if not (or $digest $tag) }}
{{- $digest = get $released $key }}
{{- end }}
{{- if $digest }}
{{- printf "%s@%s" $name $digest }}
{{- else }}
{{- printf "%s:%s" $name ($tag | default $root.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- /* The Secret that holds the certificate. */ -}}
{{- define "istio-aux.secret" -}}
{{- if eq .Values.certificate.from "secret" }}{{ required "certificate.secretName is empty: name the Secret of the certificate, for certificate.from=secret" .Values.certificate.secretName }}
{{- else if eq .Values.certificate.from "cert-manager" }}{{ include "istio-aux.fullname" . }}-tls
{{- else }}{{ include "istio-aux.fullname" . }}-certificate
{{- end }}
{{- end }}

{{- /* If the webhook asks the API server anything. */ -}}
{{- define "istio-aux.asksApi" -}}
{{- if or (eq .Values.certificate.from "self-signed") (eq .Values.nativeSidecars "auto") }}true{{ else }}false{{ end }}
{{- end }}

{{- /* A number or a word as text. A file's numbers are floats, and Go prints a large one as 1e+09. */ -}}
{{- define "istio-aux.text" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* Resource quantities in CEL: a map of strings. */ -}}
{{- define "istio-aux.quantities" -}}
{{- $pairs := list }}
{{- range $name, $quantity := . }}
{{- $pairs = append $pairs (printf "'%s': '%s'" $name (include "istio-aux.text" $quantity)) }}
{{- end }}
{{- printf "{%s}" (join ", " $pairs) }}
{{- end }}

{{- /* Words in CEL: a list of strings, without its brackets. */ -}}
{{- define "istio-aux.quoted" -}}
{{- $words := list }}
{{- range . }}
{{- $words = append $words (squote .) }}
{{- end }}
{{- join ", " $words }}
{{- end }}

{{- /* What the pods of webhook and controller have in common. */ -}}
{{- define "istio-aux.pod" -}}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- with .Values.runAsUser }}
  runAsUser: {{ int . }}
  runAsGroup: {{ int . }}
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* Spreads pods over nodes. Takes the labels that select them. */ -}}
{{- define "istio-aux.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- . | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
{{- end }}

{{- /* What their containers have in common. */ -}}
{{- define "istio-aux.container" -}}
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 2
livenessProbe:
  httpGet: {path: /healthz, port: health}
  initialDelaySeconds: 5
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

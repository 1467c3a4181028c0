{{/*
Who reaches the servers of pairs, in JSON: the gateways of this release, and whoever scrapes. The operator makes the
NetworkPolicies of it, wherever pairs are.
*/}}
{{- define "slipstream.serverIngress" -}}
{{- $home := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $gateways := include "slipstream.selector" (dict "root" . "component" "gateway") | fromYaml -}}
{{- $peer := dict "namespaceSelector" $home "podSelector" (dict "matchLabels" $gateways) -}}
{{- $rules := list (dict "from" (list $peer) "ports" (list (dict "protocol" "TCP" "port" 8001))) -}}
{{- with .Values.networkPolicy.servers.metricsFrom -}}
{{- $rules = append $rules (dict "from" . "ports" (list (dict "protocol" "TCP" "port" 8002))) -}}
{{- end -}}
{{- toJson $rules -}}
{{- end -}}

{{/* Ways out that gateway and operator share: names, the API server, Redis. */}}
{{- define "slipstream.commonEgress" -}}
{{- $policy := .Values.networkPolicy -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
  {{- with $policy.dnsPodLabels }}
  to:
    - namespaceSelector: {}
      podSelector:
        matchLabels:
          {{- toYaml . | nindent 10 }}
  {{- end }}
{{- /* No selector finds the API server: its address is a node's, and only the cluster's owner knows it. */}}
- ports:
    {{- range $policy.apiServer.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with $policy.apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- if include "slipstream.ownRedis" . }}
- to:
    - podSelector:
        matchLabels:
          {{- include "slipstream.selector" (dict "root" . "component" "redis") | nindent 10 }}
  ports:
    - {protocol: TCP, port: 6379}
{{- else if eq (include "slipstream.hasRedis" .) "true" }}
- ports:
    {{- range $policy.redis.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with $policy.redis.cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}
